"""Free memory that lies apart is memory: rows move together before anything is evicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from twinpool.memory.arena import Arena
from twinpool.memory.audit import Holdings, audit
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.node import Node
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import nothing_matched

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
        filler = self.cache.room.take_rows(FRAME)
        rows = self.cache.room.take_rows(len(TOKENS))
        self.slots = [self.cache.room.take_slot()]
        root = nothing_matched().node
        done = self.cache.insert(
            "", root, TOKENS, rows[: len(TOKENS)], [(len(TOKENS), self.slots.pop())]
        )
        self.cache.rows.free(rows[len(TOKENS) :].copy())
        self.node: Node = done.node
        self.cache.unlock(done.node)
        self.cache.rows.free(filler[: FRAME // 2].copy())
        self.running = filler[FRAME // 2 :]
        while self.cache.slots.num_free:
            self.slots.append(self.cache.room.take_slot())
        assert self.cache.rows.num_free == FRAME

    def check(self, locked: tuple[Node, ...] = ()) -> None:
        holdings = Holdings(rows=[self.running], slots=self.slots, locked=locked)
        audit(self.cache, holdings)


@pytest.mark.parametrize("may_evict", [False, True])
def test_rows_move_together_before_anything_goes(may_evict: bool) -> None:
    apart = Apart()
    before = apart.node.rows.copy()
    slot = apart.cache.room.try_take_slot(may_evict=may_evict)
    assert slot == before[0] // FRAME
    apart.slots.append(slot)
    apart.check()
    [moves] = apart.cache.room.drain_moves()
    assert moves.sources.tolist() == sorted(before.tolist())
    became = dict(zip(moves.sources.tolist(), moves.targets.tolist(), strict=True))
    assert apart.node.rows.tolist() == [became[row] for row in before.tolist()]
    assert not apart.cache.evictor.drain()
    assert apart.cache.match("", np.append(TOKENS, 0).astype(np.int32)).depth == len(TOKENS)


@dataclass
class Holder:
    """Somebody who runs."""

    number: int
    rows: np.ndarray
    tree_depth: int = 0


def test_rows_that_nobody_is_known_to_list_stay_where_they_are() -> None:
    apart = Apart()
    node = apart.cache.lock(apart.cache.match("", np.append(TOKENS, 0).astype(np.int32)))
    apart.cache.release_checkpoint(node)
    holder = Holder(0, node.rows.copy(), len(TOKENS))
    apart.cache.room.enter(holder)
    before = apart.running.copy()
    apart.slots.append(apart.cache.room.take_slot())
    # The frame with the cached prefix became the slot: of the other nothing was known.
    assert np.array_equal(apart.running, before)
    apart.check(locked=(node,))


def test_whoever_reads_rows_that_move_lists_the_new_ones() -> None:
    apart = Apart()
    node = apart.cache.lock(apart.cache.match("", np.append(TOKENS, 0).astype(np.int32)))
    apart.cache.release_checkpoint(node)
    readers = [Holder(n, np.append(node.rows, 99).astype(np.int32), len(TOKENS)) for n in (0, 1)]
    # One that lists something else at that place, and one whose path ends before it does.
    others = [
        Holder(2, np.arange(100, 120, dtype=np.int32), 20),
        Holder(3, node.rows[:3].copy(), 3),
    ]
    unread = [holder.rows.copy() for holder in others]
    for holder in (*readers, *others):
        apart.cache.room.enter(holder)
    before = node.rows.copy()
    apart.slots.append(apart.cache.room.take_slot())
    assert not np.array_equal(node.rows, before)
    for reader in readers:
        assert reader.rows.tolist() == [*node.rows.tolist(), 99]
    for holder, rows in zip(others, unread, strict=True):
        assert np.array_equal(holder.rows, rows)
    apart.check(locked=(node,))


def test_what_a_running_request_has_written_itself_moves_and_it_goes_on_listing_it() -> None:
    cache = PrefixCache(
        num_rows=0, num_slots=0, policy=eviction_policy("value"), arena=Arena(3, FRAME)
    )
    filler = cache.room.take_rows(2 * FRAME)
    holder = Holder(7, np.empty(0, np.int32))
    cache.room.enter(holder)
    holder.rows = cache.room.take_rows(FRAME, holder)
    cache.rows.free(holder.rows[4:].copy())
    holder.rows = holder.rows[:4].copy()
    cache.rows.free(filler[FRAME : FRAME + 6].copy())
    kept = np.concatenate([filler[:FRAME], filler[FRAME + 6 :]])
    before = holder.rows.copy()
    slot = cache.room.take_slot()
    assert slot == before[0] // FRAME
    [moves] = cache.room.drain_moves()
    assert moves.sources.tolist() == before.tolist()
    assert holder.rows.tolist() == moves.targets.tolist()
    audit(cache, Holdings(rows=[kept, holder.rows], slots=[slot]))
    # Who has left is found no more: its rows stay.
    cache.room.leave(holder)
    cache.slots.free(slot)
    assert cache.room.take_slot() == slot
    assert not cache.room.drain_moves()


def test_what_is_left_of_a_frame_is_not_moved_for_nothing() -> None:
    apart = Apart()
    apart.running = np.concatenate([apart.running, apart.cache.room.take_rows(1)])
    assert apart.cache.room.try_take_slot(may_evict=False) is None
    assert not apart.cache.room.drain_moves()
    apart.check()
