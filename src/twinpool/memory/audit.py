"""The audit: does every row and slot have exactly one owner, and do the books agree?

Recounts everything from the structures themselves, slowly and obviously; trusts no counter. Knows
the cache and what running requests claim to hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twinpool.errors import InvariantError
from twinpool.memory.node import Node
from twinpool.memory.prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class Holdings:
    """What running requests hold outside the tree.

    Attributes:
        rows: KV rows of all running requests that the tree does not own.
        holders: The number of whoever holds each of `rows`; empty for somebody unknown, whose rows
            stay where they are.
        slots: Working and tracked state slots of all running requests.
        locked: The locked node of each running request.
        locked_checkpoints: Nodes whose checkpoint a request has matched and not yet copied.
        listed: The rows that each running request lists of the path it has locked, in the order of
            `locked`.
        wanted: Where the reuse of each waiting request ends, as far as it has been looked up; such
            a node may have been evicted since.
    """

    rows: Sequence[npt.NDArray[np.int32]] = ()
    holders: Sequence[int] = ()
    slots: Sequence[int] = ()
    locked: Sequence[Node] = ()
    locked_checkpoints: Sequence[Node] = ()
    listed: Sequence[npt.NDArray[np.int32]] = ()
    wanted: Sequence[Node] = ()


def audit(cache: PrefixCache, holdings: Holdings | None = None) -> None:
    """Check conservation and every counter.

    Args:
        cache: The cache.
        holdings: What running requests hold; None for nothing.

    Raises:
        InvariantError: If free + working + cached is not the capacity of a pool, a unit has two
            owners or none, or a counter, lock or depth is wrong.

    Cost:
        Linear in rows and nodes.
    """
    holdings = holdings or Holdings()
    nodes = list(cache.tree.nodes())
    _check_rows(cache, nodes, holdings)
    _check_lists(cache, nodes, holdings)
    _check_slots(cache, nodes, holdings)
    _check_locks(cache, nodes, holdings)
    _check_shape(cache, nodes)
    _check_victims(cache, nodes)
    _check_budget(cache)


def _check_budget(cache: PrefixCache) -> None:
    """Recount what rows and slots in use cost together."""
    budget = cache.supply.budget
    if budget is None:
        return
    if cache.supply.is_arena:
        return
    rows = int((~cache.rows.free_mask()).sum()) - cache.page_size
    slots = int((~cache.slots.free_mask()).sum()) - 1
    cost = budget.cost(rows // cache.page_size, slots)
    if cost > budget.total:
        raise InvariantError(
            "rows and slots take more than their budget",
            ledger={"cost": cost, "budget": budget.total},
        )


def _check_rows(cache: PrefixCache, nodes: list[Node], holdings: Holdings) -> None:
    mask = cache.rows.free_mask()
    parts = [node.rows for node in nodes] + list(holdings.rows)
    owned = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
    sink = cache.page_size if cache.arena is None else cache.arena.rows_per_slot
    if len(owned) and (owned.min() < sink or owned.max() >= len(mask)):
        raise InvariantError("an owned row is outside the pool")
    owners = np.bincount(owned, minlength=len(mask)) + mask
    owners[:sink] = 1
    if cache.arena is not None:
        # A slot in use is the owner of all rows of its frame.
        for slot in _slots_in_use(nodes, holdings):
            owners[slot * sink : (slot + 1) * sink] += 1
    _require_single_owner(owners, "KV row")
    _require_equal("free rows", cache.rows.num_free, int(mask.sum()))
    _require_equal("rows in the tree", cache.tree.num_rows, sum(len(n.rows) for n in nodes))
    locked = sum(len(node.rows) for node in nodes if node.row_locks)
    _require_equal("locked rows", cache.tree.locks.num_rows, locked)


def _check_lists(cache: PrefixCache, nodes: list[Node], holdings: Holdings) -> None:
    """Check that rows are listed where they are, and would be found there if they were moved."""
    for node, rows in zip(holdings.locked, holdings.listed, strict=bool(holdings.listed)):
        if not np.array_equal(node.path_rows(), rows):
            raise InvariantError(
                "a running request lists other rows than its path has", ledger={"depth": node.depth}
            )
    if cache.arena is None or cache.room.compaction is None:
        return
    for node in nodes:
        if (cache.arena.owners_of(node.rows) != node.number).any():
            raise InvariantError("rows of a segment are another's", ledger={"depth": node.depth})
    for number, rows in zip(holdings.holders, holdings.rows, strict=bool(holdings.holders)):
        if not cache.room.compaction.is_held(number, rows):
            raise InvariantError(
                "rows of a running request would not be found", ledger={"request": number}
            )


def _check_slots(cache: PrefixCache, nodes: list[Node], holdings: Holdings) -> None:
    mask = cache.slots.free_mask()
    owners = mask.astype(np.int64)
    owners[0] = 1
    checkpoints = [node.checkpoint for node in nodes if node.has_checkpoint]
    if cache.arena is not None:
        # So are the frames of KV rows: they are neither free nor slots.
        rows_free = cache.rows.free_mask().reshape(len(mask), -1)
        in_use = np.zeros(len(mask), dtype=np.bool_)
        in_use[[0, *_slots_in_use(nodes, holdings)]] = True
        owners[~mask & ~in_use] += 1
        _require_equal("whole frames", int(rows_free.all(axis=1).sum()), int(mask.sum()))
    for slot in _slots_in_use(nodes, holdings):
        if not 0 < slot < len(mask):
            raise InvariantError(f"state slot {slot} is outside the pool")
        owners[slot] += 1
    _require_single_owner(owners, "state slot")
    _require_equal("free slots", cache.slots.num_free, int(mask.sum()))
    _require_equal("checkpoints", cache.tree.num_checkpoints, len(checkpoints))
    locked = sum(node.has_checkpoint and node.slot_locks > 0 for node in nodes)
    _require_equal("locked checkpoints", cache.tree.locks.num_checkpoints, locked)


def _slots_in_use(nodes: list[Node], holdings: Holdings) -> list[int]:
    return [node.checkpoint for node in nodes if node.has_checkpoint] + list(holdings.slots)


def _check_locks(cache: PrefixCache, nodes: list[Node], holdings: Holdings) -> None:
    row_locks: dict[int, int] = {}
    for holder in holdings.locked:
        for node in holder.path():
            row_locks[node.number] = row_locks.get(node.number, 0) + 1
    slot_locks: dict[int, int] = {}
    for node in holdings.locked_checkpoints:
        slot_locks[node.number] = slot_locks.get(node.number, 0) + 1
    wanting = Counter(node.number for node in holdings.wanted)
    for node in nodes:
        _require_equal("waiting requests of a node", node.num_wanting, wanting[node.number])
        _require_equal("row locks of a node", node.row_locks, row_locks.pop(node.number, 0))
        _require_equal("slot locks of a node", node.slot_locks, slot_locks.pop(node.number, 0))
    if row_locks or slot_locks:
        raise InvariantError(
            "a locked node is not in the tree",
            ledger={"rows": len(row_locks), "checkpoints": len(slot_locks)},
        )


def _check_shape(cache: PrefixCache, nodes: list[Node]) -> None:
    for node in nodes:
        assert node.parent is not None
        _require_equal("depth of a node", node.depth, node.parent.depth + len(node.tokens))
        _require_equal("rows of a segment", len(node.rows), len(node.tokens))
        if node.root is not node.parent.root:
            raise InvariantError("a node knows another root than its parent")
        if not len(node.tokens) or len(node.tokens) % cache.page_size:
            raise InvariantError("a segment is not whole pages")
        if (
            cache.needs_state
            and not cache.policy.keeps_dead
            and not node.children
            and not node.has_checkpoint
            and not node.row_locks
        ):
            raise InvariantError("dead KV is kept", ledger={"depth": node.depth})
    for name, root in cache.tree.roots.items():
        if root.parent is not None or root.depth or root.has_checkpoint:
            raise InvariantError(f"the root of namespace {name!r} is not a root")
        if cache.tree.namespaces.name_of(root) != name:
            raise InvariantError(f"the root of namespace {name!r} is another's")
    _require_equal("namespaces", len(cache.tree.namespaces), len(cache.tree.roots))


def _check_victims(cache: PrefixCache, nodes: list[Node]) -> None:
    rows = cache.evictor.row_victims.current()
    slots = cache.evictor.slot_victims.current()
    for node in nodes:
        if not node.children and not node.row_locks and node.number not in rows:
            raise InvariantError("an evictable leaf is not queued for eviction")
        if node.has_checkpoint and not node.slot_locks and node.number not in slots:
            raise InvariantError("an evictable checkpoint is not queued for eviction")


def _require_single_owner(owners: npt.NDArray[np.int64], what: str) -> None:
    wrong = np.flatnonzero(owners != 1)
    if len(wrong):
        raise InvariantError(
            f"{what} {int(wrong[0])} has {int(owners[wrong[0]])} owners",
            ledger={"wrong": len(wrong), "units": len(owners)},
        )


def _require_equal(what: str, booked: int, counted: int) -> None:
    if booked != counted:
        raise InvariantError(f"{what} do not add up", ledger={"booked": booked, "counted": counted})
