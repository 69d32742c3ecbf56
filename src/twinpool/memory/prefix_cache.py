"""The prefix cache: both allocators and the tree behind five verbs.

match, lock, take, insert, evict. Whoever asks for a row or slot gets a free one, or one that
eviction frees, or a clear error. It knows no request, no plan and no tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from twinpool.errors import ConfigError, OutOfRows, OutOfSlots
from twinpool.memory.allocator import RUN_ROWS, RowAllocator, RowArray, SlotAllocator
from twinpool.memory.arena import Arena, ArenaRows, ArenaSlots, Moves
from twinpool.memory.compaction import Compaction, RowHolder
from twinpool.memory.demand import Demand
from twinpool.memory.eviction import Eviction, EvictionPolicy, Reason
from twinpool.memory.evictor import MEASURE_EVERY, Evictor
from twinpool.memory.foresight import Foresight
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.path_cap import over_cap
from twinpool.memory.place import PlaceKind
from twinpool.memory.supply import Supply
from twinpool.memory.tree import Inserted, Match, Node, RadixTree, TokenArray, nothing_matched
from twinpool.memory.value import MAX_GENERATION

# Added to the recency of checkpoints that go before all others, in the order of their placing.
COLDEST = -(10**15)
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
        self.rows: RowAllocator | ArenaRows
        self.slots: SlotAllocator | ArenaSlots
        if arena is None:
            self.rows = RowAllocator(num_rows, page_size=page_size, run_rows=run_rows)
            self.slots = SlotAllocator(num_slots)
        else:
            self.rows, self.slots = arena.rows, arena.slots
            budget = OneBudget(arena.rows.capacity, page_size, arena.rows_per_slot)
        self.tree = RadixTree(page_size=page_size, needs_state=needs_state)
        self.policy = policy
        self.page_size = page_size
        self.max_states_per_path = max_states_per_path
        self.needs_state = needs_state
        self.is_enabled = is_enabled
        self.arena = arena
        self.supply = Supply(self.rows, self.slots, budget)
        self.compaction = None if arena is None else Compaction(arena, self.tree)
        self.evictor = Evictor(self.tree, self.supply, policy, measure_every=measure_every)
        self.foresight = Foresight(self.evictor, self.supply, policy)
        self.demand = Demand(self.evictor, is_reusing=is_enabled)
        self._tick = 0

    @property
    def version(self) -> int:
        """A number that changes whenever the tree does."""
        return self.evictor.version

    @property
    def evicted_rows(self) -> Mapping[Reason, int]:
        """KV rows evicted since start, by reason."""
        return self.evictor.evicted_rows

    @property
    def evicted_slots(self) -> Mapping[Reason, int]:
        """Checkpoints evicted since start, by reason."""
        return self.evictor.evicted_slots

    @property
    def thrashed_tokens(self) -> int:
        """Prompt tokens computed again because of evictions; see `Learning`."""
        learning = self.evictor.learning
        return 0 if learning is None else learning.thrashed_tokens

    @property
    def thrashed_work(self) -> int:
        """The operations that `thrashed_tokens` cost."""
        learning = self.evictor.learning
        return 0 if learning is None else learning.thrashed_work

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
        self._pass_tick()
        if match.depth == 0:
            # A root is made when something is put under it: a namespace that only asked leaves
            # nothing behind.
            return match.node
        node = self.tree.split_at(match.node, match.depth)
        if node is not match.node:
            # Whoever matched the whole segment wants its upper part, or both, from now on.
            self.evictor.version += 1
        self.tree.lock_rows(node)
        node.hits += 1
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

    def lock_checkpoint(self, node: Node) -> None:
        """Keep a checkpoint on a path that the caller has locked, until `release_checkpoint`."""
        self.tree.lock_checkpoint(node)

    def release_checkpoint(self, node: Node) -> None:
        """Unlock a matched checkpoint: its state has been copied, or will not be."""
        if node.slot_locks:
            self.tree.unlock_checkpoint(node)
            self.evictor.push(node)

    def unlock(self, node: Node) -> None:
        """Take back one lock of a path's KV, and drop what is dead then.

        Args:
            node: A node that `lock` or `insert` returned; a root is ignored.
        """
        if node.parent is None:
            return
        self.tree.unlock_rows(node)
        rows: list[RowArray] = []
        kept = self.evictor.prune(node, rows)
        self.evictor.free(rows)
        # The whole path may have become evictable; only its end can be a leaf.
        self.evictor.push(kept)

    def enter(self, holder: RowHolder) -> None:
        """Hear of somebody who lists the rows of a path it has locked, until `leave`.

        Changes:
            From now on the rows it lists are rewritten where they are moved.
        """
        if self.compaction is not None:
            self.compaction.enter(holder)

    def leave(self, holder: RowHolder) -> None:
        """Forget a holder, which gives back what is its own before anything else happens."""
        if self.compaction is not None:
            self.compaction.leave(holder)

    def take_rows(self, num_rows: int, holder: RowHolder | None = None) -> RowArray:
        """Take at least `num_rows` rows, evicting what the policy gives up first.

        Args:
            num_rows: Rows that are needed, 1 or more.
            holder: Who lists them from now on, and has entered; None: they stay where they are.

        Returns:
            Rows that the caller owns; up to one run more than asked for.

        Raises:
            OutOfRows: If free and evictable rows together are too few; nothing is evicted then.
        """
        free = self.supply.free_rows
        if num_rows > free:
            if num_rows > self.available_rows:
                raise OutOfRows(needed=num_rows, free=free, evictable=self.evictable_rows)
            self.evictor.free_up_rows(num_rows)
        rows = self.supply.take_rows(num_rows)
        if holder is not None and self.compaction is not None:
            self.compaction.own(holder, rows)
        return rows

    def take_slot(self) -> int:
        """Take a state slot, as `try_take_slot` does, evicting what it takes if none is free.

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
            may_evict: False takes free memory only.

        Changes:
            In an arena rows may move, where what is free lies apart: see `drain_moves`.
        """
        while not self._has_slot():
            if (
                not may_evict
                or not self.available_slots
                or not self.evictor.evict_for_slot("slots")
            ):
                return None
        return self.slots.allocate()

    def _has_slot(self) -> bool:
        """Say whether a slot can be taken, having moved rows together where that gives one."""
        if self.compaction is None:
            return self.supply.free_slots > 0
        return self.slots.num_free > 0 or self.compaction.empty_frame()

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
        self.evictor.version += 1
        if start.parent is None:
            start = self.tree.root(namespace)
        result = self.tree.insert(start, tokens, rows, checkpoints)
        self.tree.lock_rows(result.node)
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
        self.evictor.version += 1
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

    def drain_evictions(self) -> list[Eviction]:
        """Return the evictions since the last call, in order, and forget them."""
        return self.evictor.drain()

    def drain_moves(self) -> list[Moves]:
        """Return the rows that were moved since the last call, in order, and forget them.

        Their bytes must be copied before anything that was planned later happens.
        """
        return [] if self.compaction is None else self.compaction.drain()

    def _pass_tick(self) -> None:
        self._tick += 1
        self.policy.pass_tick(self._tick)
