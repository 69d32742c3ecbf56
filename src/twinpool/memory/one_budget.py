"""One budget: KV pages and state slots drawn from the same memory.

Says what both cost and what is left; hands nothing out and knows no tree.

    |<------------------------------ total ------------------------------>|
    | page | page | slot       | page | slot       |         left         |
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.errors import CapacityError, ConfigError


@dataclass(frozen=True, slots=True)
class OneBudget:
    """Memory that rows and states share, in any unit: bytes, or pages of equal size.

    Attributes:
        total: All of it.
        page_cost: What one page of rows takes.
        slot_cost: What one state slot takes; 0 for a model without states.
    """

    total: int
    page_cost: int
    slot_cost: int

    def __post_init__(self) -> None:
        if self.page_cost < 1 or self.slot_cost < 0:
            raise ConfigError(
                f"a page costs {self.page_cost} and a slot {self.slot_cost} of one budget",
                hint="a page needs 1 or more, and a slot 0 or more",
            )
        if self.total < self.page_cost + 2 * self.slot_cost:
            raise CapacityError(
                f"one budget of {self.total} holds less than a page of {self.page_cost} and two "
                f"states of {self.slot_cost}",
                hint="give the pools more memory",
            )

    def cost(self, num_pages: int, num_slots: int) -> int:
        """Return what pages and slots take together."""
        return num_pages * self.page_cost + num_slots * self.slot_cost

    def left(self, num_pages: int, num_slots: int) -> int:
        """Return what is left beside so many pages and slots."""
        return self.total - self.cost(num_pages, num_slots)

    def pages(self, amount: int) -> int:
        """Return the pages that an amount gives, 0 for less than one."""
        return max(amount, 0) // self.page_cost

    def slots(self, amount: int) -> int:
        """Return the slots that an amount gives, 0 for less than one."""
        return max(amount, 0) // self.slot_cost if self.slot_cost else 2**31

    @property
    def max_pages(self) -> int:
        """Pages that one request can have: a working state and a matched one stand beside them."""
        return self.pages(self.total - 2 * self.slot_cost)
