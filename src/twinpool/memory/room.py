"""Room: rows and slots for whoever asks, free ones or what eviction frees.

Whoever asks gets what it needs or a clear error, and nothing is evicted for what cannot be had.
Knows how much of the tree may go, and who lists rows that may be moved; no prefix and no plan.
"""

from __future__ import annotations

from twinpool.errors import OutOfRows, OutOfSlots
from twinpool.memory.allocator import RowArray
from twinpool.memory.arena import Moves
from twinpool.memory.compaction import Compaction, RowHolder
from twinpool.memory.evictor import Evictor
from twinpool.memory.supply import Supply
from twinpool.memory.tree import RadixTree


class Room:
    """What may be taken, and the taking of it.

    Args:
        tree: Knows how much of it is locked.
        supply: Both allocators.
        evictor: Frees what the policy gives up.
        compaction: Moves rows together in an arena; None where rows have no place.
    """

    def __init__(
        self, tree: RadixTree, supply: Supply, evictor: Evictor, compaction: Compaction | None
    ) -> None:
        self._tree = tree
        self._supply = supply
        self._evictor = evictor
        self.compaction = compaction

    @property
    def evictable_rows(self) -> int:
        """Rows that eviction could free now."""
        return self._tree.num_rows - self._tree.locks.num_rows

    @property
    def evictable_slots(self) -> int:
        """Checkpoints that eviction could free now."""
        return self._tree.num_checkpoints - self._tree.locks.num_checkpoints

    @property
    def available_rows(self) -> int:
        """Rows that are free or evictable; with one budget, if no slot is taken."""
        return self._supply.rows_with(self.evictable_rows, self.evictable_slots)

    def rows_beside(self, num_slots: int) -> int:
        """Return the rows that are available if so many slots are taken as well."""
        return self._supply.rows_with(self.evictable_rows, self.evictable_slots - num_slots)

    @property
    def available_slots(self) -> int:
        """Slots that are free or evictable; with one budget, if no row is taken."""
        return self._supply.slots_with(self.evictable_rows, self.evictable_slots)

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
        free = self._supply.free_rows
        if num_rows > free:
            if num_rows > self.available_rows:
                raise OutOfRows(needed=num_rows, free=free, evictable=self.evictable_rows)
            self._evictor.free_up_rows(num_rows)
        rows = self._supply.take_rows(num_rows)
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
                or not self._evictor.evict_for_slot("slots")
            ):
                return None
        return self._supply.slots.allocate()

    def drain_moves(self) -> list[Moves]:
        """Return the rows that were moved since the last call, in order, and forget them.

        Their bytes must be copied before anything that was planned later happens.
        """
        return [] if self.compaction is None else self.compaction.drain()

    def _has_slot(self) -> bool:
        """Say whether a slot can be taken, having moved rows together where that gives one."""
        if self.compaction is None:
            return self._supply.free_slots > 0
        return self._supply.slots.num_free > 0 or self.compaction.empty_frame()
