"""The prefix cache: both allocators and the tree behind five verbs.

match, lock, take, insert, evict. Rows and slots are taken from its `room`; what a prefix holds goes
in and out here. It knows no request, no plan and no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from twinpool.errors import ConfigError
from twinpool.memory.allocator import RUN_ROWS, RowAllocator, RowArray, SlotAllocator
from twinpool.memory.arena import Arena
from twinpool.memory.compaction import Compaction
from twinpool.memory.demand import Demand
from twinpool.memory.eviction import EvictionPolicy
from twinpool.memory.evictor import MEASURE_EVERY, Evictor
from twinpool.memory.foresight import Foresight
from twinpool.memory.node import COLDEST, Node, TokenArray
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.path_cap import over_cap
from twinpool.memory.place import PlaceKind
from twinpool.memory.room import Room
from twinpool.memory.supply import Supply
from twinpool.memory.tree import RadixTree
from twinpool.memory.tree_records import Inserted, Match, nothing_matched
from twinpool.memory.value import MAX_GENERATION

NO_KINDS: Mapping[int, PlaceKind] = MappingProxyType({})


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
        arena: The memory that rows and slots are places in, empty; `num_rows` and `num_slots` are
            then its own. None: they are none of one memory, or only names.
        run_rows: Rows of a run in a KV pool of its own; see `RowAllocator`.
        measure_every: Evictions between two measurements of the policy's scale, at least.

    Attributes:
        room: Where rows and slots are taken.
        evictor: Books what was evicted, and what that cost.
        demand: What waiting requests would reuse.

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
        arena: Arena | None = None,
        run_rows: int = RUN_ROWS,
        measure_every: int = MEASURE_EVERY,
    ) -> None:
        if max_states_per_path < -1 or max_states_per_path == 0:
            raise ConfigError(
                f"at most {max_states_per_path} states per path",
                hint="use a positive number, or -1 for no cap",
            )
        if arena is None:
            rows = RowAllocator(num_rows, page_size=page_size, run_rows=run_rows)
            self.supply = Supply(rows, SlotAllocator(num_slots), budget)
        else:
            budget = OneBudget(arena.rows.capacity, page_size, arena.rows_per_slot)
            self.supply = Supply(arena.rows, arena.slots, budget)
        self.rows, self.slots = self.supply.rows, self.supply.slots
        self.tree = RadixTree(page_size=page_size, needs_state=needs_state)
        self.policy = policy
        self.page_size = page_size
        self.max_states_per_path = max_states_per_path
        self.needs_state = needs_state
        self.is_enabled = is_enabled
        self.arena = arena
        self.evictor = Evictor(self.tree, self.supply, policy, measure_every=measure_every)
        compaction = None if arena is None else Compaction(arena, self.tree)
        self.room = Room(self.tree, self.supply, self.evictor, compaction)
        self.foresight = Foresight(self.evictor, self.supply, policy)
        self.demand = Demand(self.evictor, is_reusing=is_enabled)
        self._tick = 0

    @property
    def version(self) -> int:
        """A number that changes whenever the tree does."""
        return self.tree.namespaces.version

    def changed_at(self, namespace: str) -> int:
        """Return a number that changes whenever what a namespace holds does."""
        return self.tree.namespaces.changed_at(namespace)

    def match(self, namespace: str, tokens: TokenArray) -> Match:
        """Find the deepest reusable prefix of a prompt; changes nothing. See `RadixTree.match`."""
        return self.tree.match(namespace, tokens) if self.is_enabled else nothing_matched()

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
        self._pass_tick()
        if match.depth == 0:
            # A root is made when something is put under it: a namespace that only asked leaves
            # nothing behind.
            return match.node
        node = self.tree.split_at(match.node, match.depth)
        self.tree.locks.lock_rows(node)
        node.hits += 1
        if node.has_checkpoint:
            self.tree.locks.lock_checkpoint(node)
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
        self._pass_tick()
        node = match.node
        node.slot_used = self._tick
        for step in node.path():
            step.row_used = self._tick
        self.evictor.push(node)

    def note_demand(self, namespace: str, tokens: TokenArray, match: Match) -> None:
        """Hear of a prompt that has arrived, before its turn comes; demand must be heeded.

        Args:
            namespace: Of the prompt.
            tokens: All of it.
            match: What it finds now.

        Changes:
            What is known of how units are wanted again; what it finds becomes recent.
        """
        assert self.evictor.learning is not None
        self._pass_tick()
        self.evictor.learning.note_demand(namespace, tokens, match)
        self.touch(match)

    def release_checkpoint(self, node: Node) -> None:
        """Unlock a matched checkpoint: its state has been copied, or will not be."""
        if node.slot_locks:
            self.tree.locks.unlock_checkpoint(node)
            self.evictor.push(node)

    def unlock(self, node: Node) -> None:
        """Take back one lock of a path's KV, and drop what is dead then.

        Args:
            node: A node that `lock` or `insert` returned; a root is ignored.
        """
        if node.parent is None:
            return
        self.tree.locks.unlock_rows(node)
        rows: list[RowArray] = []
        kept = self.evictor.prune(node, rows)
        self.evictor.free(rows)
        # The whole path may have become evictable; only its end can be a leaf.
        self.evictor.push(kept)

    def insert(
        self,
        namespace: str,
        start: Node,
        tokens: TokenArray,
        rows: RowArray,
        checkpoints: list[tuple[int, int]],
        *,
        first_to_go: bool = False,
        kinds: Mapping[int, PlaceKind] = NO_KINDS,
        generation: int = 0,
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
            kinds: Why checkpoints are left, by depth.
            generation: How many turns of its session were cached before, as far as it is known.

        Returns:
            What was given back. The caller owns the duplicate rows and the surplus slots, and
            holds a lock on `node`.

        Changes:
            The tree, recency, and by the path cap the checkpoints above.
        """
        self._pass_tick()
        if start.parent is None:
            start = self.tree.root(namespace)
        result = self.tree.insert(start, tokens, rows, checkpoints)
        self.tree.locks.lock_rows(result.node)
        for step in result.node.path():
            step.row_used = self._tick
        for node in result.placed:
            node.slot_used = self._tick + (COLDEST if first_to_go else 0)
            node.hits = 0
            node.kind = kinds.get(node.depth, PlaceKind.KV)
            node.generation = min(generation, MAX_GENERATION)
        if not first_to_go:
            for node in result.found:
                node.slot_used = self._tick
        if self.max_states_per_path > 0 and result.placed:
            for node in over_cap(result.node, self.max_states_per_path):
                self.evictor.drop_checkpoint(node, "path_cap")
        # Under a new key stand those placed or found, a leaf that is locked now, and what was a
        # leaf before.
        for node in (*result.placed, *result.found, result.node, result.grown):
            self.evictor.push(node)
        for node in result.placed:
            self.evictor.push_heirs(node)
        return result

    def drop_interior(self, node: Node) -> bool:
        """Give up a periodic checkpoint that a later one of the same request has replaced.

        Args:
            node: Where it was placed as `first_to_go`.

        Returns:
            False when it must stay: a fork, a leaf, locked, gone already, matched by another
            request since, or waited for.
        """
        # Whoever matched, locked or placed it again since made it as recent as any other; a request
        # that waited before it was placed only says that it wants it.
        is_wanted = node.slot_used >= 0 or node.num_wanting > 0
        if node.parent is None or not node.has_checkpoint or is_wanted or len(node.children) != 1:
            return False
        self.evictor.drop_checkpoint(node, "rolling")
        return True

    def claim_checkpoint(self, node: Node) -> int:
        """Take a checkpoint out of the tree as it is; the caller owns the slot and its state.

        Args:
            node: An unlocked checkpoint on a path that the caller has locked.
        """
        slot = self.tree.remove_checkpoint(node)
        self.evictor.push_heirs(node)
        return slot

    def flush(self) -> bool:
        """Drop everything that is not locked.

        Returns:
            True when nothing is left.
        """
        self.evictor.flush()
        return self.tree.num_rows == 0

    def _pass_tick(self) -> None:
        self._tick += 1
        self.policy.pass_tick(self._tick)
