"""Supply: both allocators, and how much of either may be handed out.

Two pools of fixed size, or one budget for both: then row and slot numbers are only names, and what
the budget has left decides. Knows no tree; what could be evicted is told by the caller.
"""

from __future__ import annotations

from twinpool.memory.allocator import RowAllocator, RowArray, SlotAllocator
from twinpool.memory.one_budget import OneBudget


class Supply:
    """Rows and slots.

    Args:
        rows: The KV pool.
        slots: The state pool.
        budget: What both are drawn from together; None: each by itself.
    """

    def __init__(
        self, rows: RowAllocator, slots: SlotAllocator, budget: OneBudget | None = None
    ) -> None:
        self._rows = rows
        self._slots = slots
        self._page_size = rows.page_size
        self.budget = budget

    @property
    def free_rows(self) -> int:
        """Rows that could be taken now without an eviction."""
        return self.rows_with(0, 0)

    @property
    def free_slots(self) -> int:
        """Slots that could be taken now without an eviction."""
        return self.slots_with(0, 0)

    def rows_with(self, num_rows: int, num_slots: int) -> int:
        """Return the rows that could be taken once so many rows and slots were evicted.

        Args:
            num_rows: Rows, whole pages.
            num_slots: Slots; negative for some that are to be taken as well.
        """
        rows = self._rows.num_free + num_rows
        if self.budget is None:
            return rows
        left = self._left(self.budget) + self.budget.cost(num_rows // self._page_size, num_slots)
        return min(rows, self.budget.pages(left) * self._page_size)

    def slots_with(self, num_rows: int, num_slots: int) -> int:
        """Return the slots that could be taken once so many rows and slots were evicted."""
        slots = self._slots.num_free + num_slots
        if self.budget is None:
            return slots
        left = self._left(self.budget) + self.budget.cost(num_rows // self._page_size, num_slots)
        return min(slots, self.budget.slots(left))

    def max_rows(self, num_slots: int) -> int:
        """Return the rows that there are in all beside so many slots, if nothing else is held."""
        if self.budget is None:
            return self._rows.capacity
        pages = self.budget.pages(self.budget.left(0, num_slots))
        return min(self._rows.capacity, pages * self._page_size)

    def take_rows(self, num_rows: int) -> RowArray:
        """Take at least `num_rows` rows, which must be free.

        Returns:
            Rows that the caller owns. With pools of their own up to one run more than asked for,
            with a common budget no more than whole pages.
        """
        rows = self._rows.allocate(num_rows)
        if self.budget is None:
            return rows
        whole = -(-num_rows // self._page_size) * self._page_size
        self._rows.free(rows[whole:].copy())
        return rows[:whole]

    def _left(self, budget: OneBudget) -> int:
        pages = (self._rows.capacity - self._rows.num_free) // self._page_size
        return budget.left(pages, self._slots.capacity - self._slots.num_free)
