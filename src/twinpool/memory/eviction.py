"""Eviction order: which unit goes first when a pool needs room.

A unit is what is freed together: a leaf's KV with its checkpoint, or an interior checkpoint alone.
A policy is one sort key per pool; the queues below find the smallest key in logarithmic time. They
know the tree's nodes and nothing of pools, requests or time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from twinpool.errors import ConfigError
from twinpool.memory.marconi import DEFAULT_ALPHA, Marconi
from twinpool.memory.node import Node
from twinpool.memory.value import Value
from twinpool.memory.value_queue import ValueQueue
from twinpool.memory.work import NEUTRAL, PrefillWork

POLICY_NAMES = ("lru", "joint-lru", "block-lru", "marconi", "value")

# What counts first (recency, a score), then the deepest first (what is shared by more stays), then
# order of creation.
Key = tuple[float, ...]


Reason = Literal["rows", "slots", "path_cap", "dead", "flush", "rolling"]
REASONS: tuple[Reason, ...] = ("rows", "slots", "path_cap", "dead", "flush", "rolling")


@dataclass(frozen=True, slots=True)
class Eviction:
    """One unit that left the tree.

    Attributes:
        reason: Which need it made room for.
        depth: Depth at the end of the unit.
        num_rows: KV rows freed.
        num_slots: State slots freed.
    """

    reason: Reason
    depth: int
    num_rows: int
    num_slots: int


class EvictionPolicy(Protocol):
    """One sort key per pool, the smallest goes first, and what is freed together.

    Attributes:
        name: The flag's spelling.
        keeps_dead: True when KV that no checkpoint makes usable stays until its own turn comes;
            False when it goes at once.
        frees_leaf: True when the checkpoint at the end of a leaf takes the leaf's KV along; False
            when it goes alone.
        is_scaled: True when keys hang on a scale that `measure` sets.
        heeds_path: True when keys hang on the checkpoint above.
    """

    name: str
    keeps_dead: bool
    frees_leaf: bool
    is_scaled: bool
    heeds_path: bool

    def pass_tick(self, now: int) -> None:
        """Hear how late it is, in ticks of the cache; nothing to most."""
        ...

    def row_key(self, node: Node) -> Key:
        """Return the key of a leaf when rows are needed."""
        ...

    def slot_key(self, node: Node) -> Key:
        """Return the key of a checkpoint when slots are needed."""
        ...

    def measure(self, nodes: Sequence[Node]) -> None:
        """Set the scale by all that could be evicted now; nothing to do for most.

        Changes:
            Maybe every key.
        """
        ...


class Lru:
    """Each pool by its own recency, as the reference engine does.

    KV is as recent as the last request that walked it, a checkpoint as the last that used it.

    Args:
        keeps_dead: True to keep tombstones, as the reference engine does: KV without a checkpoint
            below it waits for its own turn.

    Source: reference engine, unified radix cache, default strategies of both components.
    """

    name = "lru"
    frees_leaf = True
    is_scaled = False
    heeds_path = False

    def __init__(self, *, keeps_dead: bool = False) -> None:
        self.keeps_dead = keeps_dead

    def row_key(self, node: Node) -> Key:
        """Return the recency of the leaf's KV."""
        return (node.row_used, -node.depth, node.number)

    def slot_key(self, node: Node) -> Key:
        """Return the recency of the checkpoint."""
        return (node.slot_used, -node.depth, node.number)

    def measure(self, nodes: Sequence[Node]) -> None:
        """Measure nothing: recency has no scale."""

    def pass_tick(self, now: int) -> None:
        """Recency needs no clock of its own."""


class BlockLru(Lru):
    """Every page by its own recency, KV and states alike; nothing is freed together.

    A state that goes leaves its KV behind, and KV that is of no more use waits for its turn.

    Source: vLLM, `BlockPool`: blocks of all layer groups in one free list, the longest unused first
    and of one request the tail first.
    """

    name = "block-lru"
    frees_leaf = False

    def __init__(self) -> None:
        super().__init__(keeps_dead=True)


class JointLru:
    """One recency for both pools: that of the unit.

    A leaf is one unit, so its checkpoint is as recent as its KV: a session that is still walked
    does not lose its tail because the checkpoint itself was last matched long ago, and KV does not
    outlive the only checkpoint that made it usable. A checkpoint that would go alone, because it is
    interior or a running request holds the KV, goes by its own use.
    """

    name = "joint-lru"
    keeps_dead = False
    frees_leaf = True
    is_scaled = False
    heeds_path = False

    def row_key(self, node: Node) -> Key:
        """Return the recency of the leaf as a unit."""
        return (max(node.row_used, node.slot_used), -node.depth, node.number)

    def slot_key(self, node: Node) -> Key:
        """Return the recency of the unit that the checkpoint belongs to."""
        is_alone = node.children or node.row_locks
        used = node.slot_used if is_alone else max(node.row_used, node.slot_used)
        return (used, -node.depth, node.number)

    def measure(self, nodes: Sequence[Node]) -> None:
        """Measure nothing: recency has no scale."""

    def pass_tick(self, now: int) -> None:
        """Recency needs no clock of its own."""


def eviction_policy(
    name: str,
    *,
    keeps_dead: bool = False,
    work: PrefillWork = NEUTRAL,
    alpha: float = DEFAULT_ALPHA,
) -> EvictionPolicy:
    """Return the policy of a name.

    Args:
        name: One of `POLICY_NAMES`.
        keeps_dead: For `lru`, True to keep tombstones as the reference engine does.
        work: For `marconi`, what prefixes of the model cost.
        alpha: For `marconi`, the weight of the arithmetic saved.

    Raises:
        ConfigError: If there is no such policy.
    """
    policies: dict[str, Callable[[], EvictionPolicy]] = {
        "lru": lambda: Lru(keeps_dead=keeps_dead),
        "joint-lru": JointLru,
        "block-lru": BlockLru,
        "marconi": lambda: Marconi(work, alpha),
        "value": lambda: Value(work),
    }
    try:
        return policies[name]()
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

    def peek(self) -> tuple[Key, Node] | None:
        """Return the candidate with the smallest key, and that; None where there is none."""
        while self._heap:
            key, node = self._heap[0]
            if self._is_candidate(node) and key == self._key(node):
                return key, node
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Node | None:
        """Take the candidate with the smallest key out of the queue, or None.

        The caller evicts it, or pushes it again.
        """
        if self.peek() is None:
            return None
        return heapq.heappop(self._heap)[1]

    def rekey(self) -> None:
        """Sort anew: every key may have changed.

        Cost:
            Linear in the entries.
        """
        nodes = {node.number: node for _, node in self._heap if self._is_candidate(node)}
        self._heap = [(self._key(node), node) for node in nodes.values()]
        heapq.heapify(self._heap)
        self._live_hint = len(self._heap)

    def candidates(self) -> list[Node]:
        """Return the nodes that may be evicted now, each once, in no order that means anything."""
        nodes = {node.number: node for _, node in self._heap if self._is_candidate(node)}
        return list(nodes.values())

    def current(self) -> set[int]:
        """Return the numbers of the nodes that are queued as what they are, for the audit."""
        return {node.number for key, node in self._heap if key == self._key(node)}

    def _compact(self) -> None:
        fresh = {
            (key, node.number): (key, node)
            for key, node in self._heap
            if self._is_candidate(node) and key == self._key(node)
        }
        self._heap = list(fresh.values())
        heapq.heapify(self._heap)
        self._live_hint = len(self._heap)


def victim_queue(
    policy: EvictionPolicy, key: Callable[[Node], Key], is_candidate: Callable[[Node], bool]
) -> VictimQueue | ValueQueue:
    """Return the queue that finds a policy's victims.

    Args:
        policy: The policy.
        key: Its key for the units in question.
        is_candidate: True when a node may be evicted now.
    """
    if isinstance(policy, Value):
        return ValueQueue(policy, is_candidate)
    return VictimQueue(key, is_candidate)
