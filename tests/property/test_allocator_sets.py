"""Both allocators against sets: what is free is free, what is given is given once."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from twinpool.memory.allocator import RUN_ROWS, RowAllocator, SlotAllocator


class RowMachine(RuleBasedStateMachine):
    """Rows, in whole pages; what is in use is split and given back in any order."""

    @initialize(page_size=st.sampled_from([1, 3, 4, 16, 64]), num_pages=st.integers(0, 90))
    def build(self, page_size, num_pages) -> None:
        self.page_size = page_size
        self.allocator = RowAllocator(num_pages * page_size, page_size=page_size)
        self.free = set(range(page_size, (num_pages + 1) * page_size))
        self.held: list[int] = []

    @rule(share=st.floats(0.01, 1.0))
    def allocate(self, share) -> None:
        asked = max(1, int(share * len(self.free)))
        if asked > len(self.free):
            return
        rows = self.allocator.allocate(asked).tolist()
        assert len(set(rows)) == len(rows)
        assert set(rows) <= self.free
        run = max(RUN_ROWS, self.page_size)
        assert asked <= len(rows) < asked + run
        self.free -= set(rows)
        self.held += rows[:: self.page_size]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data) -> None:
        firsts = data.draw(st.lists(st.sampled_from(self.held), unique=True, max_size=60))
        rows = [first + offset for first in firsts for offset in range(self.page_size)]
        self.allocator.free(np.array(rows, dtype=np.int32))
        self.free |= set(rows)
        self.held = [first for first in self.held if first not in set(firsts)]

    @invariant()
    def same(self) -> None:
        if hasattr(self, "allocator"):
            assert self.allocator.num_free == len(self.free)
            assert set(np.flatnonzero(self.allocator.free_mask()).tolist()) == self.free


class SlotMachine(RuleBasedStateMachine):
    """Slots, one by one."""

    @initialize(capacity=st.integers(1, 8))
    def build(self, capacity) -> None:
        self.allocator = SlotAllocator(capacity)
        self.free = set(range(1, capacity + 1))
        self.held: list[int] = []

    @precondition(lambda self: self.free)
    @rule()
    def allocate(self) -> None:
        slot = self.allocator.allocate()
        self.free.remove(slot)
        self.held.append(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data) -> None:
        slot = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.allocator.free(slot)
        self.free.add(slot)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "allocator"):
            assert self.allocator.num_free == len(self.free)
            assert set(np.flatnonzero(self.allocator.free_mask()).tolist()) == self.free


TestRows = RowMachine.TestCase
TestRows.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSlots = SlotMachine.TestCase
TestSlots.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
