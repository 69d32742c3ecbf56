"""Eviction order: which unit goes first when a pool needs room.

A unit is what is freed together: a leaf's KV with its checkpoint, or an interior checkpoint alone.
A policy is one sort key per pool; the queues below find the smallest key in logarithmic time. They
know the tree's nodes and nothing of pools, requests or time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from twinpool.errors import ConfigError
from twinpool.memory.tree import Node

# Recency, then the deepest first (what is shared by more stays), then order of creation.
Key = tuple[int, int, int]


class EvictionPolicy(Protocol):
    """One sort key per pool; the smallest goes first."""

    name: str

    def row_key(self, node: Node) -> Key:
        """Return the key of a leaf when rows are needed."""
        ...

    def slot_key(self, node: Node) -> Key:
        """Return the key of a checkpoint when slots are needed."""
        ...


class Lru:
    """Each pool by its own recency, as the reference engine does.

    KV is as recent as the last request that walked it, a checkpoint as the last that used it.

    Source: reference engine, unified radix cache, default strategies of both components.
    """

    name = "lru"

    def row_key(self, node: Node) -> Key:
        """Return the recency of the leaf's KV."""
        return (node.row_used, -node.depth, node.number)

    def slot_key(self, node: Node) -> Key:
        """Return the recency of the checkpoint."""
        return (node.slot_used, -node.depth, node.number)


class JointLru:
    """One recency for both pools: that of the unit.

    A leaf is one unit, so its checkpoint is as recent as its KV: a session that is still walked
    does not lose its tail because the checkpoint itself was last matched long ago, and KV does not
    outlive the only checkpoint that made it usable. A checkpoint that would go alone, because it is
    interior or a running request holds the KV, goes by its own use.
    """

    name = "joint-lru"

    def row_key(self, node: Node) -> Key:
        """Return the recency of the leaf as a unit."""
        return (max(node.row_used, node.slot_used), -node.depth, node.number)

    def slot_key(self, node: Node) -> Key:
        """Return the recency of the unit that the checkpoint belongs to."""
        is_alone = node.children or node.row_locks
        used = node.slot_used if is_alone else max(node.row_used, node.slot_used)
        return (used, -node.depth, node.number)


_POLICIES: dict[str, Callable[[], EvictionPolicy]] = {"lru": Lru, "joint-lru": JointLru}
POLICY_NAMES = tuple(_POLICIES)


def eviction_policy(name: str) -> EvictionPolicy:
    """Return the policy of a name.

    Raises:
        ConfigError: If there is no such policy.
    """
    try:
        return _POLICIES[name]()
    except KeyError:
        raise ConfigError(
            f"unknown eviction policy {name!r}", hint=f"one of {', '.join(POLICY_NAMES)}"
        ) from None


class VictimQueue:
    """A heap of candidates whose keys change: stale entries are dropped when they surface.

    Args:
        key: Sort key of a node.
        is_candidate: True when the node may be evicted now.

    Every change that makes a node a candidate, or changes its key, must be followed by `push`.
    """

    def __init__(self, key: Callable[[Node], Key], is_candidate: Callable[[Node], bool]) -> None:
        self._key = key
        self._is_candidate = is_candidate
        self._heap: list[tuple[Key, Node]] = []
        self._live_hint = 0

    def push(self, node: Node) -> None:
        """Make a node known under its present key; one that is no candidate is ignored."""
        if self._is_candidate(node):
            heapq.heappush(self._heap, (self._key(node), node))
            if len(self._heap) > 2 * self._live_hint + 1024:
                self._compact()

    def pop(self) -> Node | None:
        """Take the candidate with the smallest key out of the queue, or None.

        The caller evicts it, or pushes it again.
        """
        while self._heap:
            key, node = heapq.heappop(self._heap)
            if self._is_candidate(node) and key == self._key(node):
                return node
        return None

    def entries(self) -> set[tuple[Key, int]]:
        """Return `(key, node number)` of all entries, stale ones too, for the audit."""
        return {(key, node.number) for key, node in self._heap}

    def _compact(self) -> None:
        fresh = {
            (key, node.number): (key, node)
            for key, node in self._heap
            if self._is_candidate(node) and key == self._key(node)
        }
        self._heap = list(fresh.values())
        heapq.heapify(self._heap)
        self._live_hint = len(self._heap)
