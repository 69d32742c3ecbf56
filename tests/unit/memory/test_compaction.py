"""Free memory that lies apart is memory: cold rows move together before anything is evicted."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.memory.arena import Arena
from twinpool.memory.audit import Holdings, audit
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree import Node

FRAME = 16
TOKENS = np.arange(FRAME // 2, dtype=np.int32)


class Apart:
    """An arena in which a frame's worth of rows is free, in halves of two frames.

    One half holds a cached prefix; the other one is held by somebody who runs.
    """

    def __init__(self) -> None:
        self.arena = Arena(4, FRAME)
        self.cache = PrefixCache(
            num_rows=0, num_slots=0, policy=eviction_policy("value"), arena=self.arena
        )
        filler = self.cache.take_rows(FRAME)
        rows = self.cache.take_rows(len(TOKENS))
        self.slots = [self.cache.take_slot()]
        root = self.cache.match_nothing().node
        done = self.cache.insert(
            "", root, TOKENS, rows[: len(TOKENS)], [(len(TOKENS), self.slots.pop())]
        )
        self.cache.rows.free(rows[len(TOKENS) :].copy())
        self.node: Node = done.node
        self.cache.unlock(done.node)
        self.cache.rows.free(filler[: FRAME // 2].copy())
        self.running = filler[FRAME // 2 :]
        while self.cache.slots.num_free:
            self.slots.append(self.cache.take_slot())
        assert self.cache.rows.num_free == FRAME

    def check(self, locked: tuple[Node, ...] = ()) -> None:
        holdings = Holdings(rows=[self.running], slots=self.slots, locked=locked)
        audit(self.cache, holdings)


@pytest.mark.parametrize("may_evict", [False, True])
def test_rows_move_together_before_anything_goes(may_evict: bool) -> None:
    apart = Apart()
    before = apart.node.rows.copy()
    slot = apart.cache.try_take_slot(may_evict=may_evict)
    assert slot == before[0] // FRAME
    apart.slots.append(slot)
    apart.check()
    [moves] = apart.cache.drain_moves()
    assert moves.sources.tolist() == sorted(before.tolist())
    became = dict(zip(moves.sources.tolist(), moves.targets.tolist(), strict=True))
    assert apart.node.rows.tolist() == [became[row] for row in before.tolist()]
    assert not apart.cache.drain_evictions()
    assert apart.cache.match("", np.append(TOKENS, 0).astype(np.int32)).depth == len(TOKENS)


def test_rows_that_somebody_reads_stay_where_they_are() -> None:
    apart = Apart()
    node = apart.cache.lock(apart.cache.match("", np.append(TOKENS, 0).astype(np.int32)))
    apart.cache.release_checkpoint(node)
    assert apart.cache.try_take_slot(may_evict=False) is None
    assert not apart.cache.drain_moves()
    apart.check(locked=(node,))


def test_what_is_left_of_a_frame_is_not_moved_for_nothing() -> None:
    apart = Apart()
    apart.running = np.concatenate([apart.running, apart.cache.take_rows(1)])
    assert apart.cache.try_take_slot(may_evict=False) is None
    assert not apart.cache.drain_moves()
    apart.check()
