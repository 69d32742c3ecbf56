"""What is promised about reuse holds to the token, for any conversation, while nothing is evicted.

A repeat computes one token; the next turn computes what is new; what two requests have shared is
reused by the third; boundaries are reused from their second use on.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulation import Rig, make_rig


@dataclass
class Done:
    """A request that has ended: what was computed, and where checkpoints were promised."""

    prompt: list[int]
    history: list[int]
    places: set[int]


def shared(first: list[int], second: list[int]) -> int:
    """Length of the common prefix."""
    length = min(len(first), len(second))
    return next((at for at in range(length) if first[at] != second[at]), length)


def promised(prompt: list[int], done: list[Done], page: int) -> int:
    """Return the deepest promised place on a prompt's path that leaves a token to compute."""
    best = 0
    for earlier in done:
        common = min(shared(prompt, earlier.history), len(prompt) - 1)
        places = {place // page * page for place in earlier.places}
        best = max([best, *(place for place in places if place <= common)])
    return best


def send(rig: Rig, done: list[Done], prompt: list[int], output: int, boundaries: set[int]) -> int:
    """Run one request, compare with the promise, and note what it leaves."""
    page = rig.scheduler.cache.page_size
    inside = {place for place in boundaries if place < len(prompt)}
    expected = promised(prompt, done, page)
    kv_depth = max((shared(prompt[:-1], earlier.history) for earlier in done), default=0)
    number = rig.one(prompt, max_tokens=output, boundaries=tuple(sorted(inside)))
    if page == 1:
        assert rig.cached[number] == expected
    else:
        # With pages, chunk ends may leave a periodic checkpoint that nobody promised.
        assert rig.cached[number] >= expected
    assert rig.computed[number] == len(prompt) - rig.cached[number] + output - 1
    history = prompt + rig.outputs[number][: output - 1]
    # Prompt end, finish, boundaries, and where it left what others had left in the tree. The state
    # before what was reused is not passed again, so nothing can be left there.
    places = {len(prompt) - 1, len(history), kv_depth} | inside
    places = {place for place in places if place > rig.cached[number]}
    done.append(Done(prompt, history, places))
    return number


@pytest.mark.parametrize("page_size", [1, 4])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    chunk_tokens=st.sampled_from([4, 16, 512]),
    policy=st.sampled_from(["lru", "joint-lru"]),
)
def test_every_promise_of_reuse_holds_to_the_token(data, page_size, chunk_tokens, policy):
    rig = make_rig(
        num_rows=40_000,
        num_slots=2000,
        page_size=page_size,
        chunk_tokens=chunk_tokens,
        policy=policy,
        # Periodic checkpoints would come on top of what is promised.
        track_interval=100_000,
    )
    done: list[Done] = []
    for _ in range(data.draw(st.integers(2, 10))):
        base: list[int] = []
        if done:
            base = data.draw(st.sampled_from(done)).history
            kind = data.draw(st.sampled_from(["whole", "cut", "new"]))
            cut = data.draw(st.integers(0, len(base))) if kind == "cut" else len(base)
            base = [] if kind == "new" else base[:cut]
        more = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=30))
        boundaries = data.draw(st.sets(st.integers(1, 60), max_size=2))
        prompt = base + more
        if done and data.draw(st.booleans()):
            prompt = data.draw(st.sampled_from(done)).prompt
        send(rig, done, prompt, data.draw(st.integers(1, 9)), boundaries)
