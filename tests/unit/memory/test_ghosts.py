"""Ghosts of evicted units."""

from __future__ import annotations

import numpy as np

from twinpool.memory.ghosts import TAIL_TOKENS, Ghost, Ghosts


def tail(tokens: list[int], depth: int) -> bytes:
    return np.array(tokens[max(0, depth - TAIL_TOKENS) : depth], dtype=np.int32).tobytes()


def remembered(*places: tuple[str, list[int], int]) -> Ghosts:
    ghosts = Ghosts()
    for number, (namespace, tokens, depth) in enumerate(places):
        ghosts.add(namespace, tail(tokens, depth), Ghost(kind=number, used=0, depth=depth))
    return ghosts


def test_the_deepest_that_a_prompt_would_have_reused_is_taken_once() -> None:
    tokens = list(range(100))
    ghosts = remembered(("", tokens, 40), ("", tokens, 60), ("", tokens, 99))
    prompt = np.array(tokens[:80], dtype=np.int32)
    found = [ghosts.take("", prompt, 0) for _ in range(3)]
    assert [ghost and ghost.depth for ghost in found] == [60, 40, None]
    assert len(ghosts) == 1


def test_what_is_cached_anyway_is_no_loss() -> None:
    tokens = list(range(100))
    ghosts = remembered(("", tokens, 40))
    assert ghosts.take("", np.array(tokens, dtype=np.int32), 40) is None


def test_another_prefix_or_namespace_is_another_ghost() -> None:
    tokens = list(range(100))
    ghosts = remembered(("", tokens, 40))
    other = np.array([*tokens[:39], 7, *tokens[40:]], dtype=np.int32)
    assert ghosts.take("", other, 0) is None
    assert ghosts.take("x", np.array(tokens, dtype=np.int32), 0) is None


def test_the_oldest_fade_first() -> None:
    tokens = list(range(100))
    ghosts = remembered(*(("", tokens, depth) for depth in (10, 20, 30, 40)))
    assert [ghost.depth for ghost in ghosts.fade(1)] == [10, 20, 30]
    assert ghosts.take("", np.array(tokens, dtype=np.int32), 0) is not None
    assert len(ghosts) == 0
