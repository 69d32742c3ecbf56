"""The evictor: frees rows and slots in the order that a policy gives, and books what went.

Owns the queues of what may go. Knows the tree, both allocators and a policy; no request.
"""

from __future__ import annotations

import math

import numpy as np

from twinpool.memory.allocator import RowArray
from twinpool.memory.eviction import REASONS, Eviction, EvictionPolicy, Reason, victim_queue
from twinpool.memory.learning import Learning
from twinpool.memory.marconi import heirs
from twinpool.memory.node import Node
from twinpool.memory.supply import Supply
from twinpool.memory.tree import RadixTree
from twinpool.memory.tree_records import Removed
from twinpool.memory.value import Value

# Evictions between two measurements of a policy's scale, at least.
MEASURE_EVERY = 64


class Evictor:
    """Takes units out of the tree.

    Args:
        tree: Where they stand.
        supply: Both allocators, to which they go back.
        policy: Order of eviction.
        measure_every: Evictions between two measurements of the policy's scale, at least.

    Attributes:
        row_victims: Leaves that may go.
        slot_victims: Checkpoints that may go.
        learning: What became of units, where the policy learns; else None.
        evicted_rows: KV rows evicted since start, by reason.
        evicted_slots: Checkpoints evicted since start, by reason.
    """

    def __init__(
        self,
        tree: RadixTree,
        supply: Supply,
        policy: EvictionPolicy,
        *,
        measure_every: int = MEASURE_EVERY,
    ) -> None:
        self._tree = tree
        self._supply = supply
        self._policy = policy
        self._measure_every = measure_every
        self._until_measure = 0
        self._log: list[Eviction] = []
        self.learning = Learning(tree, policy) if isinstance(policy, Value) else None
        self.evicted_rows: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.evicted_slots: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.row_victims = victim_queue(policy, policy.row_key, _is_row_victim)
        self.slot_victims = victim_queue(policy, policy.slot_key, _is_slot_victim)

    @property
    def thrashed_tokens(self) -> int:
        """Prompt tokens computed again because of evictions; see `Learning`."""
        return 0 if self.learning is None else self.learning.thrashed_tokens

    @property
    def thrashed_work(self) -> int:
        """The operations that `thrashed_tokens` cost."""
        return 0 if self.learning is None else self.learning.thrashed_work

    def push(self, node: Node) -> None:
        """Queue a node as what it is now, where it may go."""
        self.row_victims.push(node)
        self.slot_victims.push(node)

    def push_heirs(self, node: Node) -> None:
        """Queue the entries below anew whose key hangs on a checkpoint that came or went."""
        if self._policy.heeds_path:
            for heir in heirs(node):
                self.push(heir)

    def free_up_rows(self, num_rows: int) -> None:
        """Evict until so many rows are free; they must be available.

        Changes:
            The tree, the allocators and the log.
        """
        if self._supply.budget is not None:
            while self._supply.free_rows < num_rows:
                is_any = self.evict_first("rows")
                assert is_any, "evictable rows without a victim"
            return
        rows: list[RowArray] = []
        missing = num_rows - self._supply.free_rows
        while missing > 0:
            self.measure()
            leaf = self.row_victims.pop()
            assert leaf is not None, "evictable rows without a leaf"
            self._note_eviction(leaf)
            missing -= self.remove_leaf(leaf, "rows", rows)
        self.free(rows)

    def evict_for_slot(self, reason: Reason) -> bool:
        """Evict what goes first for a slot; False when there is nothing.

        Changes:
            The tree, the allocators and the log.
        """
        if self._supply.budget is not None:
            return self.evict_first(reason)
        self.measure()
        node = self.slot_victims.pop()
        if node is None:
            return False
        self._evict_checkpoint(node, reason)
        return True

    def evict_first(self, reason: Reason) -> bool:
        """Evict what goes first of both kinds; False when there is nothing.

        Changes:
            The tree, the allocators and the log.
        """
        self.measure()
        victim = self.pop_first()
        if victim is None:
            return False
        if victim.has_checkpoint and not victim.slot_locks:
            self._evict_checkpoint(victim, reason)
        else:
            rows: list[RowArray] = []
            self._note_eviction(victim)
            self.remove_leaf(victim, reason, rows)
            self.free(rows)
        return True

    def pop_first(self) -> Node | None:
        """Take what goes first of both kinds out of its queue; of equals the checkpoint goes.

        The caller evicts it, or pushes it again.
        """
        leaf, holder = self.row_victims.peek(), self.slot_victims.peek()
        is_leaf = leaf is not None and (holder is None or leaf[0] < holder[0])
        return self.row_victims.pop() if is_leaf else self.slot_victims.pop()

    def least_worth(self) -> float:
        """Return what the unit is worth that would go first for a slot; infinite if none can.

        Only a policy by value says what units are worth.
        """
        firsts = [self.slot_victims.peek()]
        if self._supply.budget is not None:
            firsts.append(self.row_victims.peek())
        return min((first[0][0] for first in firsts if first is not None), default=math.inf)

    def drop_checkpoint(self, node: Node, reason: Reason) -> None:
        """Take a checkpoint away and leave its KV.

        Changes:
            The tree, the slots and the log.
        """
        self._supply.slots.free(self._tree.remove_checkpoint(node))
        self.evicted_slots[reason] += 1
        self._log.append(Eviction(reason, node.depth, 0, 1))
        self.push_heirs(node)

    def remove_leaf(self, leaf: Node, reason: Reason, rows: list[RowArray]) -> int:
        """Take a leaf out and what is dead then.

        Args:
            leaf: A leaf without locks.
            reason: Which need it makes room for.
            rows: Receives the rows, which the caller frees.

        Returns:
            How many rows went.
        """
        before = self._tree.num_rows
        removed = Removed()
        parent = self._tree.remove_leaf(leaf, removed)
        self._give_back(removed, reason, rows)
        self.push(self.prune(parent, rows))
        return before - self._tree.num_rows

    def prune(self, node: Node, rows: list[RowArray]) -> Node:
        """Take out a node and its ancestors as far as they are dead; returns the first that stays.

        Args:
            node: Where to begin.
            rows: Receives the rows, which the caller frees.
        """
        if self._policy.keeps_dead:
            return node
        removed = Removed()
        kept = self._tree.prune_dead(node, removed)
        if removed.nodes:
            self._give_back(removed, "dead", rows)
        return kept

    def flush(self) -> None:
        """Evict all that is not locked.

        Changes:
            The tree, the allocators and the log.
        """
        rows: list[RowArray] = []
        self.measure()
        while (leaf := self.row_victims.pop()) is not None:
            self.remove_leaf(leaf, "flush", rows)
            self.measure()
        self.free(rows)
        while (node := self.slot_victims.pop()) is not None:
            self.drop_checkpoint(node, "flush")
            self.measure()

    def drain(self) -> list[Eviction]:
        """Return the evictions since the last call, in order, and forget them."""
        drained, self._log = self._log, []
        return drained

    def free(self, rows: list[RowArray]) -> None:
        """Free rows in one go: many small segments would cost a call each."""
        if rows:
            self._supply.rows.free(np.concatenate(rows))

    def measure(self) -> None:
        """Let a policy with a scale look at all that could be evicted, seldom enough."""
        self._until_measure -= 1
        if not self._policy.is_scaled or self._until_measure >= 0:
            return
        nodes = {node.number: node for node in self.slot_victims.candidates()}
        nodes |= {node.number: node for node in self.row_victims.candidates()}
        self._policy.measure(list(nodes.values()))
        self.row_victims.rekey()
        self.slot_victims.rekey()
        self._until_measure = max(len(nodes), self._measure_every) if self._measure_every else 0

    def _evict_checkpoint(self, node: Node, reason: Reason) -> None:
        """Drop a checkpoint, with the leaf that it ends where the policy has them as one unit."""
        self._note_eviction(node)
        if node.children or node.row_locks or not self._policy.frees_leaf:
            self.drop_checkpoint(node, reason)
        else:
            rows: list[RowArray] = []
            self.remove_leaf(node, reason, rows)
            self.free(rows)

    def _note_eviction(self, node: Node) -> None:
        if self.learning is None:
            return
        fallen_back_to = self.learning.note_eviction(node)
        if fallen_back_to is not None:
            self.push(fallen_back_to)

    def _give_back(self, removed: Removed, reason: Reason, rows: list[RowArray]) -> None:
        """Free the slots of what was removed and book it; its rows pass on to `rows`."""
        rows += removed.rows
        for slot in removed.slots:
            self._supply.slots.free(slot)
        self.evicted_rows[reason] += removed.num_rows
        self.evicted_slots[reason] += len(removed.slots)
        depth = removed.nodes[0].depth
        self._log.append(Eviction(reason, depth, removed.num_rows, len(removed.slots)))


def _is_row_victim(node: Node) -> bool:
    return node.parent is not None and not node.children and node.row_locks == 0


def _is_slot_victim(node: Node) -> bool:
    return node.parent is not None and node.has_checkpoint and node.slot_locks == 0
