"""The audit finds every kind of cooked book: each test spoils one and must be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from twinpool.errors import InvariantError
from twinpool.memory.audit import Holdings, audit
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.node import NO_SLOT, Node
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import nothing_matched


def make() -> tuple[PrefixCache, Holdings, Node]:
    """Return a cache with one stored session, one running request and what it holds."""
    cache = PrefixCache(num_rows=64, num_slots=6, policy=eviction_policy("joint-lru"))
    tokens = np.arange(16, dtype=np.int32)
    rows = cache.room.take_rows(16)
    slots = [cache.room.take_slot(), cache.room.take_slot()]
    root = nothing_matched().node
    done = cache.insert("", root, tokens, rows, [(8, slots[0]), (16, slots[1])])
    cache.unlock(done.node)
    node = cache.lock(cache.match("", np.append(tokens, 1).astype(np.int32)))
    own = cache.room.take_rows(16)
    working = cache.room.take_slot()
    cache.demand.want(node)
    holdings = Holdings(
        rows=[own],
        slots=[working],
        locked=[node],
        locked_checkpoints=[node],
        wanted=[node],
    )
    return cache, holdings, node


def test_honest_books_pass():
    cache, holdings, _ = make()
    audit(cache, holdings)


def _lose_a_row(cache: PrefixCache, node: Node) -> None:
    cache.rows._masks[np.flatnonzero(cache.rows._masks)[0]] -= 1


def _two_owners_of_a_row(cache: PrefixCache, node: Node) -> None:
    node.rows[0] = node.rows[1]


def _row_outside(cache: PrefixCache, node: Node) -> None:
    node.rows[0] = 1000


def _sink_owned(cache: PrefixCache, node: Node) -> None:
    node.rows[0] = 0


def _lose_a_slot(cache: PrefixCache, node: Node) -> None:
    node.checkpoint = NO_SLOT


def _two_owners_of_a_slot(cache: PrefixCache, node: Node) -> None:
    assert node.parent is not None
    node.parent.checkpoint = node.checkpoint


def _slot_outside(cache: PrefixCache, node: Node) -> None:
    node.checkpoint = 99


def _free_rows_off(cache: PrefixCache, node: Node) -> None:
    cache.rows.num_free += 1


def _tree_rows_off(cache: PrefixCache, node: Node) -> None:
    cache.tree.num_rows += 1


def _locked_rows_off(cache: PrefixCache, node: Node) -> None:
    cache.tree.locks.num_rows -= 1


def _checkpoints_off(cache: PrefixCache, node: Node) -> None:
    cache.tree.num_checkpoints += 1


def _locked_checkpoints_off(cache: PrefixCache, node: Node) -> None:
    cache.tree.locks.num_checkpoints = 0


def _row_lock_off(cache: PrefixCache, node: Node) -> None:
    node.row_locks += 1


def _slot_lock_off(cache: PrefixCache, node: Node) -> None:
    node.slot_locks += 1


def _depth_off(cache: PrefixCache, node: Node) -> None:
    node.depth += 1


def _ids_too_short(cache: PrefixCache, node: Node) -> None:
    node.ids = node.ids[:-4]


def _root_with_depth(cache: PrefixCache, node: Node) -> None:
    cache.tree.roots["x"] = node


SPOILERS: list[Callable[[PrefixCache, Node], None]] = [
    _lose_a_row,
    _two_owners_of_a_row,
    _row_outside,
    _sink_owned,
    _lose_a_slot,
    _two_owners_of_a_slot,
    _slot_outside,
    _free_rows_off,
    _tree_rows_off,
    _locked_rows_off,
    _checkpoints_off,
    _locked_checkpoints_off,
    _row_lock_off,
    _slot_lock_off,
    _depth_off,
    _ids_too_short,
    _root_with_depth,
]


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__.strip("_"))
def test_cooked_books_are_found(spoil):
    cache, holdings, node = make()
    spoil(cache, node)
    with pytest.raises(InvariantError):
        audit(cache, holdings)


@pytest.mark.parametrize("field", ["rows", "slots", "locked", "locked_checkpoints", "wanted"])
def test_what_a_request_holds_and_does_not_tell_is_found(field):
    cache, holdings, _ = make()
    told = {name: getattr(holdings, name) for name in holdings.__dataclass_fields__}
    with pytest.raises(InvariantError):
        audit(cache, Holdings(**(told | {field: ()})))


def test_dead_kv_is_found():
    cache, holdings, node = make()
    cache.release_checkpoint(node)
    slot = cache.claim_checkpoint(node)
    cache.tree.locks.unlock_rows(node)
    with pytest.raises(InvariantError, match="dead"):
        audit(
            cache,
            replace(holdings, slots=[*holdings.slots, slot], locked=(), locked_checkpoints=()),
        )


@pytest.mark.parametrize("queue", ["row_victims", "slot_victims"])
def test_a_candidate_missing_from_its_queue_is_found(queue):
    cache, holdings, node = make()
    cache.release_checkpoint(node)
    cache.unlock(node)
    rest = replace(holdings, locked=(), locked_checkpoints=())
    audit(cache, rest)
    getattr(cache.evictor, queue)._heap.clear()
    with pytest.raises(InvariantError, match="queued"):
        audit(cache, rest)


def test_the_ledger_names_what_was_booked_and_counted():
    cache, holdings, _ = make()
    cache.rows.num_free += 3
    with pytest.raises(InvariantError) as error:
        audit(cache, holdings)
    assert error.value.ledger["booked"] == error.value.ledger["counted"] + 3
