"""Placing: where a request leaves checkpoints, and the slots that they are written to.

A checkpoint is optional: where no slot is free, and none is worth evicting for it, it is skipped.
Knows the cache, the snapshot rules and one request; what is written goes to the tree by residency.
"""

from __future__ import annotations

from twinpool.memory.place import PlaceKind
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import SnapshotRules
from twinpool.memory.tree_records import Match
from twinpool.memory.value import start_of
from twinpool.scheduling.plan import CheckpointWrite
from twinpool.scheduling.request import Request


class Placing:
    """Chooses the places of checkpoints.

    Args:
        cache: The pools and the tree.
        rules: What the slot strategy takes and leaves.

    Attributes:
        skipped_checkpoints: Checkpoints that found no slot, or none worth evicting for; since
            start.
        is_periodic_in_tree: True where periodic checkpoints of a decode are the tree's at once.
    """

    def __init__(self, cache: PrefixCache, rules: SnapshotRules) -> None:
        self._cache = cache
        self._rules = rules
        self.skipped_checkpoints = 0
        self.is_periodic_in_tree = rules.has_exact_places and cache.page_size == 1

    def plan(self, request: Request, match: Match) -> None:
        """Choose where a request that starts leaves checkpoints in its prompt.

        Args:
            request: A request whose prefix is locked.
            match: What it matched.

        Changes:
            The request's places.
        """
        page, last = self._cache.page_size, request.fill - 1
        whole = request.arrival.num_whole
        if whole is not None and request.fill == request.num_prompt:
            last = min(last, whole)
        asked = [(match.kv_depth, PlaceKind.FORK)]
        if self._rules.at_boundaries:
            asked += [(depth, PlaceKind.BOUNDARY) for depth in request.arrival.boundaries]
        if self._rules.at_prompt_end:
            asked.append((last, PlaceKind.PROMPT_END))
        for depth, kind in asked:
            floored = min(depth, last) // page * page
            if floored > match.depth:
                request.add_place(floored, kind)
        if self._rules.at_boundaries and page > 1 and request.fill % page == 0:
            # The answer may end before the next page does; then this is what the next turn needs.
            request.add_place(request.fill, PlaceKind.PROMPT_END)

    def writes(self, request: Request, end: int) -> tuple[CheckpointWrite, ...]:
        """Take slots for the checkpoints of a span, as far as there are any.

        Args:
            request: A running request; its span is `[num_computed, end)`.
            end: Where the span ends.

        Returns:
            Copies by rising depth. Each slot is the tree's to be, or a tracked one.
        """
        request.is_write_periodic = False
        if not self._cache.needs_state or not self._cache.is_enabled:
            return ()
        if request.num_computed >= request.fill:
            return self._decode_writes(request, end)
        if not self._rules.has_exact_places:
            return self._grid_writes(request, end)
        due = [depth for depth in request.places if request.num_computed < depth <= end]
        writes: list[CheckpointWrite] = []
        for depth in due:
            above = writes[-1].depth if writes else None
            slot = self._slot_for(request, depth, above)
            if slot is None:
                self.skipped_checkpoints += 1
            else:
                writes.append(CheckpointWrite(depth, slot))
        if end < request.fill and not due:
            return self._periodic_writes(request, end)
        return tuple(writes)

    def _slot_for(self, request: Request, depth: int, above: int | None) -> int | None:
        """Take a slot for a checkpoint, None when there is none or it is not worth one.

        Free memory is taken without asking.

        Args:
            request: Whose it is.
            depth: Where it stands.
            above: Depth of the one before it in the same span, None when that is in the tree.
        """
        slot = self._cache.room.try_take_slot(may_evict=False)
        if slot is not None:
            return slot
        node = request.node
        assert node is not None
        if above is None:
            above = node.depth if node.has_checkpoint else start_of(node)
        is_worth = self._cache.foresight.admit_checkpoint(
            request.arrival.namespace,
            node,
            request.tokens[:depth],
            above,
            request.kinds[depth],
            request.generation,
        )
        return self._cache.room.try_take_slot(may_evict=True) if is_worth else None

    def _periodic_writes(self, request: Request, end: int) -> tuple[CheckpointWrite, ...]:
        """Leave one at the end of a chunk, if memory is free: nothing is evicted for it."""
        depth = end // self._cache.page_size * self._cache.page_size
        grid = self._rules.decode_grid
        is_due = grid > 0 and depth - request.tree_depth >= grid
        slot = None
        if is_due and depth > request.num_computed:
            slot = self._cache.room.try_take_slot(may_evict=False)
        request.is_write_periodic = slot is not None
        return () if slot is None else (CheckpointWrite(depth, slot),)

    def _grid_writes(self, request: Request, end: int) -> tuple[CheckpointWrite, ...]:
        depth: int | None
        whole = request.arrival.num_whole
        if whole is not None and end == request.num_prompt:
            end = min(end, whole)
            if end <= request.num_computed:
                return ()
        if self._rules.copies_chunk_end:
            depth = end
            slot = self._cache.room.try_take_slot(may_evict=True)
        else:
            depth = self._rules.grid_snapshot(request.num_computed, end, request.branch)
            slot = request.tracked[0] if request.tracked else None
        if depth is None:
            return ()
        if slot is None:
            self.skipped_checkpoints += 1
            return ()
        return (CheckpointWrite(depth, slot),)

    def _decode_writes(self, request: Request, end: int) -> tuple[CheckpointWrite, ...]:
        grid = self._rules.decode_grid
        if not grid or end % grid:
            return ()
        latest = request.snapshot[1] if request.snapshot else None
        slot: int | None
        if self.is_periodic_in_tree:
            slot = self._cache.room.try_take_slot(may_evict=False)
            request.is_write_periodic = True
        elif self._rules.takes_second_slot or not self._rules.num_tracked:
            # A free slot if there is one; else the new snapshot replaces the old one in place.
            slot = self._cache.room.try_take_slot(may_evict=False)
            if slot is not None:
                request.tracked.append(slot)
            elif request.tracked:
                slot = request.tracked[0]
        else:
            spare = [slot for slot in request.tracked if slot != latest]
            slot = spare[0] if spare else latest
        return () if slot is None else (CheckpointWrite(end, slot),)
