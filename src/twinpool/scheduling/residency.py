r"""Residency: what a request holds in the pools, from admission to its end.

Every row and slot that moves between a request, the tree and the free lists moves here, but for the
slots that `placing` takes for checkpoints. Knows the cache and the snapshot rules; decides neither
the order of requests nor the shape of a step.

    free --take--> request --insert--> tree --evict--> free
                      \------------release-----------> free
"""

from __future__ import annotations

from twinpool.errors import OutOfSlots
from twinpool.memory.node import NO_SLOT
from twinpool.memory.place import PlaceKind
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import SnapshotRules
from twinpool.memory.tree_records import Inserted, Match
from twinpool.scheduling.placing import Placing
from twinpool.scheduling.plan import CheckpointWrite, CopyState, MemoryAction, ZeroState
from twinpool.scheduling.request import Request


class Residency:
    """Moves rows and slots for requests.

    Args:
        cache: The pools and the tree.
        rules: What the slot strategy takes and leaves.
        placing: Says where a request leaves checkpoints.
    """

    def __init__(self, cache: PrefixCache, rules: SnapshotRules, placing: Placing) -> None:
        self.cache = cache
        self.rules = rules
        self._placing = placing

    def enter(self, request: Request, match: Match) -> list[MemoryAction]:
        """Lock what was matched and take the slots that a running request holds.

        Args:
            request: A waiting request.
            match: What its tokens match now.

        Returns:
            The actions that make its working state ready.

        Raises:
            OutOfSlots: If the slots are not there; nothing is held then.

        Changes:
            The request holds a lock, its prefix's rows and its slots.
        """
        node = self.cache.lock(match)
        request.node = node
        request.matched = node if node.has_checkpoint else None
        try:
            actions = self._take_slots(request)
        except OutOfSlots:
            self.leave(request)
            raise
        request.append_rows(node.path_rows())
        request.tree_depth = request.num_computed = match.depth
        self.cache.room.enter(request)
        request.generation = match.node.generation + 1 if match.depth else 0
        request.fill = request.num_tokens
        request.branch = match.kv_depth if match.kv_depth > match.depth else 0
        if self.rules.has_exact_places:
            self._placing.plan(request, match)
        return actions

    def grow(self, request: Request, end: int) -> None:
        """Hold rows for the first `end` tokens.

        Raises:
            OutOfRows: If they are not there; nothing changes then.
        """
        if end > request.num_rows:
            rows = self.cache.room.take_rows(end - request.num_rows, request)
            request.append_rows(rows)

    def settle(
        self, request: Request, end: int, writes: tuple[CheckpointWrite, ...], *, in_decode: bool
    ) -> None:
        """Account for a span that has been computed.

        Args:
            request: The request; `num_computed` moves to `end`.
            end: Where the span ended.
            writes: The copies that were taken in it.
            in_decode: True when the span began behind the prompt.
        """
        request.num_computed = end
        request.places = [depth for depth in request.places if depth > end]
        if request.matched is not None and not self.rules.keeps_match_locked:
            self.cache.release_checkpoint(request.matched)
            request.matched = None
        if not self.cache.needs_state and not in_decode:
            self._share_rows(request)
        if not writes:
            return
        if in_decode and not self._placing.is_periodic_in_tree:
            self._keep_snapshot(request, writes[-1])
            return
        for write in writes:
            if write.slot in request.tracked:
                request.tracked.remove(write.slot)
        inserted = self._insert(
            request,
            [(w.depth, w.slot) for w in writes],
            kind=PlaceKind.PERIODIC if request.is_write_periodic else None,
            first_to_go=request.is_write_periodic,
        )
        if request.is_write_periodic:
            if request.periodic is not None:
                self.cache.drop_interior(request.periodic)
            request.periodic = inserted.node
        while len(request.tracked) < self.rules.num_tracked:
            slot = self.cache.room.try_take_slot(may_evict=True)
            if slot is None:
                break
            request.tracked.append(slot)

    def keep(self, request: Request) -> None:
        """Give what has been computed to the tree, then let go of everything.

        The working state itself becomes the checkpoint, or the latest snapshot does, as the
        strategy says.

        Args:
            request: A request that ends, or goes back to the queue.
        """
        if self.cache.is_enabled:
            depth = request.num_computed
            if not self.cache.needs_state:
                self._share_rows(request)
            elif (
                self.rules.donates_working
                and depth > request.tree_depth
                and depth % self.cache.page_size == 0
            ):
                slot, request.slot = request.slot, NO_SLOT
                self._insert(request, [(depth, slot)], kind=PlaceKind.FINISH)
            elif request.snapshot is not None and request.snapshot[0] > request.tree_depth:
                request.tracked.remove(request.snapshot[1])
                self._insert(request, [request.snapshot], kind=PlaceKind.FINISH)
        self.leave(request)

    def leave(self, request: Request) -> None:
        """Let go of every row, slot and lock that a request holds outside the tree.

        Changes:
            The request holds nothing; its tokens stay.
        """
        if request.matched is not None:
            self.cache.release_checkpoint(request.matched)
        self.cache.room.leave(request)
        self.cache.rows.free(request.own_rows)
        for slot in request.slots:
            self.cache.slots.free(slot)
        node = request.node
        request.reset()
        if node is not None:
            self.cache.unlock(node)

    def num_entry_slots(self, match: Match) -> int:
        """Return the slots that a request takes at admission, the matched one included."""
        if not self.cache.needs_state:
            return 0
        own = int(match.node.has_checkpoint and match.node.slot_locks == 0)
        return 1 + self.rules.num_tracked + own

    def can_enter(self, match: Match) -> bool:
        """True when the slots that a request takes at admission could be had for this match."""
        if not self.cache.needs_state:
            return True
        own = int(match.node.has_checkpoint and match.node.slot_locks == 0)
        short = 1 + self.rules.num_tracked - (self.cache.room.available_slots - own)
        return short <= 0 or (short == 1 and own == 1 and not self.rules.num_tracked)

    @property
    def min_slots(self) -> int:
        """Slots without which not even one request could run."""
        if not self.cache.needs_state:
            return 0
        # Without tracked slots the matched checkpoint itself can become the working state.
        return 1 + self.rules.num_tracked + (self.rules.num_tracked > 0)

    @property
    def max_rows(self) -> int:
        """Rows that one request could have, with the slots that it takes when a state matches."""
        num_slots = 2 + self.rules.num_tracked if self.cache.needs_state else 0
        return self.cache.supply.max_rows(num_slots)

    def _take_slots(self, request: Request) -> list[MemoryAction]:
        if not self.cache.needs_state:
            return []
        source = request.matched
        if source is not None and self.cache.room.available_slots == 0 and source.slot_locks == 1:
            # The only slot to be had is the matched checkpoint itself: it becomes the working
            # state, and no copy is needed.
            self.cache.release_checkpoint(source)
            request.matched = None
            request.slot = self.cache.claim_checkpoint(source)
            return []
        request.slot = self.cache.room.take_slot()
        for _ in range(self.rules.num_tracked):
            request.tracked.append(self.cache.room.take_slot())
        if source is None:
            return [ZeroState(request.slot)]
        return [CopyState(source.checkpoint, request.slot)]

    def _keep_snapshot(self, request: Request, write: CheckpointWrite) -> None:
        request.snapshot = (write.depth, write.slot)
        limit = max(1, self.rules.num_tracked)
        for slot in [slot for slot in request.tracked if slot != write.slot]:
            if len(request.tracked) > limit:
                request.tracked.remove(slot)
                self.cache.slots.free(slot)

    def _share_rows(self, request: Request) -> None:
        """Give the tree what has been computed: for a model without states that is enough."""
        depth = request.num_computed // self.cache.page_size * self.cache.page_size
        if self.cache.is_enabled and depth > request.tree_depth:
            self._insert(request, [], depth=depth)

    def _insert(
        self,
        request: Request,
        checkpoints: list[tuple[int, int]],
        *,
        depth: int = 0,
        kind: PlaceKind | None = None,
        first_to_go: bool = False,
    ) -> Inserted:
        """Give rows and checkpoints to the tree and move the lock to the new end."""
        end = checkpoints[-1][0] if checkpoints else depth
        kinds = request.kinds if kind is None else {end: kind}
        old = request.node
        assert old is not None
        inserted = self.cache.insert(
            request.arrival.namespace,
            old,
            request.tokens[:end],
            request.rows[:end],
            checkpoints,
            first_to_go=first_to_go,
            kinds=kinds,
            generation=request.generation,
        )
        start, stop = inserted.duplicate_start, inserted.duplicate_end
        if stop > start:
            # The tree had these tokens from another request: use its rows, give back our own.
            self.cache.rows.free(request.rows[start:stop].copy())
            request.replace_rows(start, inserted.node.path_rows()[start:stop])
        for slot in inserted.surplus_slots:
            self.cache.slots.free(slot)
        request.tree_depth = end
        request.node = inserted.node
        if self.rules.keeps_match_locked and inserted.node.has_checkpoint:
            # What a request has left last is what it keeps, instead of what it began from.
            if request.matched is not None:
                self.cache.release_checkpoint(request.matched)
            self.cache.tree.locks.lock_checkpoint(inserted.node)
            request.matched = inserted.node
        self.cache.unlock(old)
        return inserted
