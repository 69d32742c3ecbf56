"""Supply: both allocators, and how much of either may be handed out.

Two pools of fixed size; or one budget for both, where row and slot numbers are only names and what
the budget has left decides; or an arena, where they are places in one memory. Knows no tree; what
could be evicted is told by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.memory.allocator import RowAllocator, RowArray, SlotAllocator
from twinpool.memory.arena import ArenaRows, ArenaSlots
from twinpool.memory.one_budget import OneBudget


@dataclass(slots=True)
class Shortage:
    """What is missing of rows and slots; above 0 where something is.

    Attributes:
        rows: Rows, with pools of their own; or the part of a common budget.
        slots: Slots, with pools of their own.
        budget: What both are drawn from together; None: each by itself.
        page_size: Rows of a page.
    """

    rows: int
    slots: int
    budget: OneBudget | None
    page_size: int

    @property
    def is_shared(self) -> bool:
        """True when rows and slots make room for each other."""
        return self.budget is not None

    @property
    def is_over(self) -> bool:
        """True when nothing is missing any more."""
        return self.rows <= 0 and self.slots <= 0

    def give(self, num_rows: int, num_slots: int) -> None:
        """Count what an eviction would free."""
        if self.budget is not None:
            self.rows -= self.budget.cost(num_rows // self.page_size, num_slots)
        else:
            self.rows -= num_rows
            self.slots -= num_slots


class Supply:
    """Rows and slots.

    Args:
        rows: The KV pool.
        slots: The state pool.
        budget: What both are drawn from together; None: each by itself.

    Attributes:
        is_arena: True when both are places in one memory.
    """

    def __init__(
        self,
        rows: RowAllocator | ArenaRows,
        slots: SlotAllocator | ArenaSlots,
        budget: OneBudget | None = None,
    ) -> None:
        self.rows = rows
        self.slots = slots
        self._page_size = rows.page_size
        self.budget = budget
        self.is_arena = isinstance(rows, ArenaRows)

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
        rows = self.rows.num_free + num_rows
        if self.budget is None:
            return rows
        left = self._left(self.budget) + self.budget.cost(num_rows // self._page_size, num_slots)
        of_budget = self.budget.pages(left) * self._page_size
        return of_budget if self.is_arena else min(rows, of_budget)

    def slots_with(self, num_rows: int, num_slots: int) -> int:
        """Return the slots that could be taken once so many rows and slots were evicted.

        In an arena rows that lie apart may have to be moved together first.
        """
        slots = self.slots.num_free + num_slots
        if self.budget is None:
            return slots
        left = self._left(self.budget) + self.budget.cost(num_rows // self._page_size, num_slots)
        of_budget = self.budget.slots(left)
        return of_budget if self.is_arena else min(slots, of_budget)

    def shortage(self, num_rows: int, num_slots: int) -> Shortage:
        """Say what is missing if so many rows and slots are to be taken."""
        if self.budget is None:
            rows, slots = num_rows - self.free_rows, num_slots - self.slots.num_free
            return Shortage(rows, slots, None, self._page_size)
        pages = -(-num_rows // self._page_size)
        missing = self.budget.cost(pages, num_slots) - self._left(self.budget)
        return Shortage(missing, 0, self.budget, self._page_size)

    def max_rows(self, num_slots: int) -> int:
        """Return the rows that there are in all beside so many slots, if nothing else is held."""
        if self.budget is None:
            return self.rows.capacity
        pages = self.budget.pages(self.budget.left(0, num_slots))
        return min(self.rows.capacity, pages * self._page_size)

    def take_rows(self, num_rows: int) -> RowArray:
        """Take at least `num_rows` rows, which must be free.

        Returns:
            Rows that the caller owns, up to one run more than asked for; where numbers are only
            names, no more than whole pages.
        """
        rows = self.rows.allocate(num_rows)
        if self.budget is None or self.is_arena:
            return rows
        whole = -(-num_rows // self._page_size) * self._page_size
        self.rows.free(rows[whole:].copy())
        return rows[:whole]

    def _left(self, budget: OneBudget) -> int:
        if self.is_arena:
            return self.rows.num_free // self._page_size * budget.page_cost
        pages = (self.rows.capacity - self.rows.num_free) // self._page_size
        return budget.left(pages, self.slots.capacity - self.slots.num_free)
