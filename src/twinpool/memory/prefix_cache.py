"""The prefix cache: both allocators and the tree behind five verbs.

match, lock, take, insert, evict. Whoever asks for a row or slot gets a free one, or one that
eviction frees, or a clear error. It knows no request, no plan and no tensor.
"""

from __future__ import annotations

import numpy as np

from twinpool.errors import ConfigError, OutOfRows, OutOfSlots
from twinpool.memory.allocator import RowAllocator, RowArray, SlotAllocator
from twinpool.memory.eviction import REASONS, Eviction, EvictionPolicy, Reason, VictimQueue
from twinpool.memory.marconi import heirs
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.path_cap import over_cap
from twinpool.memory.supply import Supply
from twinpool.memory.tree import (
    Inserted,
    Match,
    Node,
    RadixTree,
    Removed,
    TokenArray,
    nothing_matched,
)

# Added to the recency of checkpoints that go before all others, in the order of their placing.
COLDEST = -(10**15)
# Evictions between two measurements of a policy's scale, at least.
MEASURE_EVERY = 64


class PrefixCache:
    """Rows, slots and the prefixes they hold.

    Args:
        num_rows: Rows in the KV pool, padding left out.
        num_slots: Slots in the state pool, padding left out.
        policy: Order of eviction.
        page_size: Rows of a page.
        max_states_per_path: Checkpoints that one path may hold; -1 for no cap.
        needs_state: False for a model without linear layers.
        is_enabled: False turns reuse off: nothing matches and nothing is kept.
        budget: What rows and slots are drawn from together; None: each pool by itself.
        measure_every: Evictions between two measurements of the policy's scale, at least.

    Raises:
        ConfigError: If a number is out of range.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        num_slots: int,
        policy: EvictionPolicy,
        page_size: int = 1,
        max_states_per_path: int = -1,
        needs_state: bool = True,
        is_enabled: bool = True,
        budget: OneBudget | None = None,
        measure_every: int = MEASURE_EVERY,
    ) -> None:
        if max_states_per_path < -1 or max_states_per_path == 0:
            raise ConfigError(
                f"at most {max_states_per_path} states per path",
                hint="use a positive number, or -1 for no cap",
            )
        self.rows = RowAllocator(num_rows, page_size=page_size)
        self.slots = SlotAllocator(num_slots)
        self.tree = RadixTree(page_size=page_size, needs_state=needs_state)
        self.policy = policy
        self.page_size = page_size
        self.max_states_per_path = max_states_per_path
        self.needs_state = needs_state
        self.is_enabled = is_enabled
        self.supply = Supply(self.rows, self.slots, budget)
        self._measure_every = measure_every
        self._until_measure = 0
        self.evicted_rows: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.evicted_slots: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self.version = 0
        self._log: list[Eviction] = []
        self._tick = 0
        self.row_victims = VictimQueue(policy.row_key, _is_row_victim)
        self.slot_victims = VictimQueue(policy.slot_key, _is_slot_victim)

    @property
    def evictable_rows(self) -> int:
        """Rows that eviction could free now."""
        return self.tree.num_rows - self.tree.num_locked_rows

    @property
    def evictable_slots(self) -> int:
        """Checkpoints that eviction could free now."""
        return self.tree.num_checkpoints - self.tree.num_locked_checkpoints

    @property
    def available_rows(self) -> int:
        """Rows that are free or evictable; with one budget, if no slot is taken."""
        return self.supply.rows_with(self.evictable_rows, self.evictable_slots)

    def rows_beside(self, num_slots: int) -> int:
        """Return the rows that are available if so many slots are taken as well."""
        return self.supply.rows_with(self.evictable_rows, self.evictable_slots - num_slots)

    @property
    def available_slots(self) -> int:
        """Slots that are free or evictable; with one budget, if no row is taken."""
        return self.supply.slots_with(self.evictable_rows, self.evictable_slots)

    def match(self, namespace: str, tokens: TokenArray) -> Match:
        """Find the deepest reusable prefix of a prompt; changes nothing. See `RadixTree.match`."""
        return self.tree.match(namespace, tokens) if self.is_enabled else self.match_nothing()

    def match_nothing(self) -> Match:
        """Return the match of a prompt that shares nothing."""
        return nothing_matched()

    def lock(self, match: Match) -> Node:
        """Lock what a match found: the path's KV, and the checkpoint until it has been copied.

        Args:
            match: A match made since the last change of the tree.

        Returns:
            The locked node, at the match's depth. Pass it to `unlock`, and to
            `release_checkpoint` once the state has been copied.

        Changes:
            Lock counts and recency; splits a node for models without linear layers.
        """
        self._tick += 1
        if match.depth == 0:
            # A root is made when something is put under it: a namespace that only asked leaves
            # nothing behind.
            return match.node
        node = self.tree.split_at(match.node, match.depth)
        self.tree.lock_rows(node)
        if node.has_checkpoint:
            self.tree.lock_checkpoint(node)
            node.slot_used = self._tick
        for step in node.path():
            step.row_used = self._tick
        return node

    def touch(self, match: Match) -> None:
        """Make what was matched recent without locking it.

        Args:
            match: A match made since the last change of the tree.

        Changes:
            Recency of the path's KV and of the matched checkpoint.
        """
        if match.depth == 0:
            return
        self._tick += 1
        node = match.node
        node.slot_used = self._tick
        for step in node.path():
            step.row_used = self._tick
        self.row_victims.push(node)
        self.slot_victims.push(node)

    def lock_checkpoint(self, node: Node) -> None:
        """Keep a checkpoint on a path that the caller has locked, until `release_checkpoint`."""
        self.tree.lock_checkpoint(node)

    def release_checkpoint(self, node: Node) -> None:
        """Unlock a matched checkpoint: its state has been copied, or will not be."""
        if node.slot_locks:
            self.tree.unlock_checkpoint(node)
            self.slot_victims.push(node)

    def unlock(self, node: Node) -> None:
        """Take back one lock of a path's KV, and drop what is dead then.

        Args:
            node: A node that `lock` or `insert` returned; a root is ignored.
        """
        if node.parent is None:
            return
        self.tree.unlock_rows(node)
        rows: list[RowArray] = []
        kept = self._prune(node, rows)
        self._free(rows)
        # The whole path may have become evictable; only its end can be a leaf.
        self.row_victims.push(kept)
        self.slot_victims.push(kept)

    def take_rows(self, num_rows: int) -> RowArray:
        """Take at least `num_rows` rows, evicting what the policy gives up first.

        Returns:
            Rows that the caller owns; up to one run more than asked for.

        Raises:
            OutOfRows: If free and evictable rows together are too few; nothing is evicted then.
        """
        free = self.supply.free_rows
        if num_rows > free:
            if num_rows > self.available_rows:
                raise OutOfRows(needed=num_rows, free=free, evictable=self.evictable_rows)
            self._evict_rows(num_rows)
        return self.supply.take_rows(num_rows)

    def take_slot(self) -> int:
        """Take a state slot, evicting one checkpoint if none is free.

        Raises:
            OutOfSlots: If none is free and none evictable.
        """
        slot = self.try_take_slot(may_evict=True)
        if slot is None:
            raise OutOfSlots(needed=1, free=0, evictable=0)
        return slot

    def try_take_slot(self, *, may_evict: bool) -> int | None:
        """Take a state slot for something optional, or None when there is none.

        Args:
            may_evict: False takes free slots only.
        """
        while not self.supply.free_slots:
            if not may_evict or not self.available_slots or not self._evict_slot("slots"):
                return None
        return self.slots.allocate()

    def insert(
        self,
        namespace: str,
        start: Node,
        tokens: TokenArray,
        rows: RowArray,
        checkpoints: list[tuple[int, int]],
        *,
        first_to_go: bool = False,
    ) -> Inserted:
        """Put a prefix into the tree, lock its path once more, then apply the path cap.

        Args:
            namespace: Where the prefix belongs.
            start: The node the caller has locked (its walk begins there), or a root.
            tokens: int32 ids from depth 0 to the end of the prefix.
            rows: int32 rows of the same span.
            checkpoints: `(depth, slot)` by rising depth; the deepest stands at the end, unless
                the model has no linear layers.
            first_to_go: Place the checkpoints as the coldest of all.

        Returns:
            What was given back. The caller owns the duplicate rows and the surplus slots, and
            holds a lock on `node`.

        Changes:
            The tree, recency, and by the path cap the checkpoints above.
        """
        self._tick += 1
        self.version += 1
        if start.parent is None:
            start = self.tree.root(namespace)
        result = self.tree.insert(start, tokens, rows, checkpoints)
        self.tree.lock_rows(result.node)
        for step in result.node.path():
            step.row_used = self._tick
        for node in result.placed:
            node.slot_used = self._tick + (COLDEST if first_to_go else 0)
        if not first_to_go:
            for node in result.found:
                node.slot_used = self._tick
        if self.max_states_per_path > 0 and result.placed:
            for node in over_cap(result.node, self.max_states_per_path):
                self._drop_checkpoint(node, "path_cap")
        # Under a new key stand those placed or found, a leaf that is locked now, and what was a
        # leaf before.
        for node in (*result.placed, *result.found, result.node, result.grown):
            self.slot_victims.push(node)
        for node in result.placed:
            self._push_heirs(node)
        return result

    def drop_interior(self, node: Node) -> bool:
        """Give up a periodic checkpoint that a later one of the same request has replaced.

        Args:
            node: Where it was placed as `first_to_go`.

        Returns:
            False when it must stay: a fork, a leaf, locked, gone already, or wanted by another
            request since.
        """
        # Whoever matched, locked or placed it again since made it as recent as any other.
        is_wanted = node.slot_used >= 0
        if node.parent is None or not node.has_checkpoint or is_wanted or len(node.children) != 1:
            return False
        self._drop_checkpoint(node, "rolling")
        return True

    def claim_checkpoint(self, node: Node) -> int:
        """Take a checkpoint out of the tree as it is; the caller owns the slot and its state.

        Args:
            node: An unlocked checkpoint on a path that the caller has locked.
        """
        self.version += 1
        slot = self.tree.remove_checkpoint(node)
        self._push_heirs(node)
        return slot

    def flush(self) -> bool:
        """Drop everything that is not locked.

        Returns:
            True when nothing is left.
        """
        rows: list[RowArray] = []
        self._measure()
        while (leaf := self.row_victims.pop()) is not None:
            self._remove_leaf(leaf, "flush", rows)
            self._measure()
        self._free(rows)
        while (node := self.slot_victims.pop()) is not None:
            self._drop_checkpoint(node, "flush")
            self._measure()
        return self.tree.num_rows == 0

    def drain_evictions(self) -> list[Eviction]:
        """Return the evictions since the last call, in order, and forget them."""
        drained, self._log = self._log, []
        return drained

    def _evict_rows(self, num_rows: int) -> None:
        if self.supply.budget is not None:
            while self.supply.free_rows < num_rows:
                is_any = self._evict_any("rows")
                assert is_any, "evictable rows without a victim"
            return
        rows: list[RowArray] = []
        missing = num_rows - self.rows.num_free
        while missing > 0:
            self._measure()
            leaf = self.row_victims.pop()
            assert leaf is not None, "evictable rows without a leaf"
            missing -= self._remove_leaf(leaf, "rows", rows)
        self._free(rows)

    def _evict_slot(self, reason: Reason) -> bool:
        if self.supply.budget is not None:
            return self._evict_any(reason)
        self._measure()
        node = self.slot_victims.pop()
        if node is None:
            return False
        self._evict_checkpoint(node, reason)
        return True

    def _evict_any(self, reason: Reason) -> bool:
        """Evict what goes first of both kinds; False when there is nothing."""
        self._measure()
        leaf, holder = self.row_victims.pop(), self.slot_victims.pop()
        if leaf is not None and holder is not None:
            if self.policy.row_key(leaf) < self.policy.slot_key(holder):
                self.slot_victims.push(holder)
                holder = None
            else:
                self.row_victims.push(leaf)
        if holder is not None:
            self._evict_checkpoint(holder, reason)
        elif leaf is not None:
            rows: list[RowArray] = []
            self._remove_leaf(leaf, reason, rows)
            self._free(rows)
        return leaf is not None or holder is not None

    def _evict_checkpoint(self, node: Node, reason: Reason) -> None:
        """Drop a checkpoint, with the leaf that it ends where the policy has them as one unit."""
        if node.children or node.row_locks or not self.policy.frees_leaf:
            self._drop_checkpoint(node, reason)
        else:
            rows: list[RowArray] = []
            self._remove_leaf(node, reason, rows)
            self._free(rows)

    def _measure(self) -> None:
        """Let a policy with a scale look at all that could be evicted, seldom enough."""
        self._until_measure -= 1
        if not self.policy.is_scaled or self._until_measure >= 0:
            return
        nodes = {node.number: node for node in self.slot_victims.candidates()}
        nodes |= {node.number: node for node in self.row_victims.candidates()}
        self.policy.measure(list(nodes.values()))
        self.row_victims.rekey()
        self.slot_victims.rekey()
        self._until_measure = max(len(nodes), self._measure_every) if self._measure_every else 0

    def _push_heirs(self, node: Node) -> None:
        """Make the entries below known anew whose key hangs on a checkpoint that came or went."""
        if not self.policy.is_scaled:
            return
        for heir in heirs(node):
            self.row_victims.push(heir)
            self.slot_victims.push(heir)

    def _remove_leaf(self, leaf: Node, reason: Reason, rows: list[RowArray]) -> int:
        """Take a leaf out and what is dead then; `rows` receives the rows. Returns how many."""
        before = self.tree.num_rows
        removed = Removed()
        parent = self.tree.remove_leaf(leaf, removed)
        self._give_back(removed, reason, rows)
        kept = self._prune(parent, rows)
        self.row_victims.push(kept)
        self.slot_victims.push(kept)
        return before - self.tree.num_rows

    def _drop_checkpoint(self, node: Node, reason: Reason) -> None:
        self.slots.free(self.tree.remove_checkpoint(node))
        self.version += 1
        self.evicted_slots[reason] += 1
        self._log.append(Eviction(reason, node.depth, 0, 1))
        self._push_heirs(node)

    def _prune(self, node: Node, rows: list[RowArray]) -> Node:
        if self.policy.keeps_dead:
            return node
        removed = Removed()
        kept = self.tree.prune_dead(node, removed)
        if removed.nodes:
            self._give_back(removed, "dead", rows)
        return kept

    def _give_back(self, removed: Removed, reason: Reason, rows: list[RowArray]) -> None:
        """Free the slots of what was removed and book it; its rows pass on to `rows`."""
        self.version += 1
        rows += removed.rows
        for slot in removed.slots:
            self.slots.free(slot)
        self.evicted_rows[reason] += removed.num_rows
        self.evicted_slots[reason] += len(removed.slots)
        depth = removed.nodes[0].depth
        self._log.append(Eviction(reason, depth, removed.num_rows, len(removed.slots)))

    def _free(self, rows: list[RowArray]) -> None:
        """Free rows in one go: many small segments would cost a call each."""
        if rows:
            self.rows.free(np.concatenate(rows))


def _is_row_victim(node: Node) -> bool:
    return node.parent is not None and not node.children and node.row_locks == 0


def _is_slot_victim(node: Node) -> bool:
    return node.parent is not None and node.has_checkpoint and node.slot_locks == 0
