"""The prefix cache and its naive twin side by side: each verb runs on both and must do the same.

Knows no request; `twin_requests` has those.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from twinpool.errors import OutOfRows
from twinpool.memory.audit import Holdings, audit
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.naive import NaiveMatch, NaivePrefixCache
from twinpool.memory.naive_prefixes import Prefix
from twinpool.memory.node import Node
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import Match
from twinpool.memory.work import PrefillWork

Slots = tuple[int, int]
WORK = PrefillWork(flops_per_row=7, flops_per_pair=1, row_bytes=2, slot_bytes=9)
# Not 1: the oldest of the best and the newest of the worst would be worth the same.
ALPHA = Fraction(7, 10)


class TwinCaches:
    """Both caches; any difference between them is an assertion."""

    def __init__(
        self,
        *,
        policy: str,
        page_size: int,
        cap: int,
        num_pages: int,
        num_slots: int,
        needs_state: bool,
        keeps_dead: bool = False,
        budget: tuple[int, int, int] | None = None,
    ) -> None:
        self.page_size = page_size
        self.needs_state = needs_state
        self.real = PrefixCache(
            policy=eviction_policy(policy, keeps_dead=keeps_dead, work=WORK, alpha=float(ALPHA)),
            # The twin scales anew for every victim.
            measure_every=0,
            budget=None if budget is None else OneBudget(*budget),
            num_rows=num_pages * page_size,
            num_slots=num_slots,
            page_size=page_size,
            max_states_per_path=cap,
            needs_state=needs_state,
        )
        self.naive = NaivePrefixCache(
            policy=policy,
            num_rows=num_pages * page_size,
            num_slots=num_slots,
            page_size=page_size,
            max_states_per_path=cap,
            needs_state=needs_state,
            keeps_dead=keeps_dead,
            budget=budget,
            work=(WORK.flops_per_row, WORK.flops_per_pair, WORK.row_bytes, WORK.slot_bytes),
            alpha=ALPHA,
        )
        # The prefix that each row was last written for.
        self.content: dict[int, Prefix] = {}
        # Slots and rows taken and not given to a tree.
        self.spare_slots: list[Slots] = []
        self.spare_rows: list[np.ndarray] = []

    def match(self, namespace: str, tokens: tuple[int, ...]) -> tuple[Match, NaiveMatch]:
        """Match in both."""
        found = self.real.match(namespace, np.array(tokens, dtype=np.int32))
        expected = self.naive.match(namespace, tokens)
        assert (found.depth, found.kv_depth) == (expected.depth, expected.kv_depth)
        assert found.depth <= found.kv_depth < len(tokens)
        return found, expected

    def flush(self) -> None:
        """Drop everything that nobody uses."""
        assert self.real.flush() == self.naive.flush()

    def take_rows(self, num_rows: int) -> np.ndarray | None:
        """Take rows in both, and give back at once what the allocator gave on top."""
        rounded = -(-num_rows // self.page_size) * self.page_size
        free = self.real.supply.free_rows
        try:
            rows = self.real.room.take_rows(num_rows)
        except OutOfRows:
            with pytest.raises(OutOfRows):
                self.naive.take_rows(num_rows)
            assert self.real.supply.free_rows == free
            return None
        self.naive.take_rows(num_rows)
        self.real.rows.free(rows[rounded:].copy())
        return rows[:rounded]

    def give_rows(self, rows: np.ndarray) -> None:
        """Give rows back in both."""
        self.real.rows.free(rows.copy())
        self.naive.give_rows(len(rows))

    def take_slot(self, *, may_evict: bool) -> Slots | None:
        """Take a slot in both, or in none."""
        slot = self.real.room.try_take_slot(may_evict=may_evict)
        other = self.naive.try_take_slot(may_evict=may_evict)
        assert (slot is None) == (other is None)
        return None if slot is None or other is None else (slot, other)

    def give_slot(self, slots: Slots) -> None:
        """Give a slot back in both."""
        self.real.slots.free(slots[0])
        self.naive.books.give_slot(slots[1])

    def check(
        self, locked: Sequence[Node], locked_checkpoints: Sequence[Node], wanted: Sequence[Node]
    ) -> None:
        """Compare everything that can be seen from outside, and audit.

        Args:
            locked: The locked node of each running request.
            locked_checkpoints: Nodes whose checkpoint one has matched and not yet copied.
            wanted: What waiting requests want.
        """
        real, naive, books = self.real, self.naive, self.naive.books
        evictions = [
            (unit.reason, unit.depth, unit.num_rows, unit.num_slots)
            for unit in real.evictor.drain()
        ]
        assert evictions == naive.drain_evictions()
        assert real.rows.num_free == books.num_free_rows
        assert real.slots.num_free == len(books.free_slots)
        assert real.supply.free_rows == books.takable_rows
        assert real.supply.free_slots == books.takable_slots
        assert real.room.available_rows == books.available_rows
        assert real.room.available_slots == books.available_slots
        assert real.room.evictable_rows == books.evictable_rows
        assert real.room.evictable_slots == books.evictable_slots
        assert self._contents() == (set(books.kv), set(books.checkpoints))
        if naive.value is not None:
            assert real.evictor.thrashed_tokens == naive.value.thrashed_tokens
            assert real.evictor.thrashed_work == naive.value.thrashed_work
        audit(
            real,
            Holdings(
                rows=self.spare_rows,
                slots=[slot for slot, _ in self.spare_slots],
                locked=locked,
                locked_checkpoints=locked_checkpoints,
                wanted=wanted,
            ),
        )

    def _contents(self) -> tuple[set[Prefix], set[Prefix]]:
        """Return the prefixes with KV and with a checkpoint; checks what each row holds."""
        kv: set[Prefix] = set()
        checkpoints: set[Prefix] = set()
        for namespace, root in self.real.tree.roots.items():
            stack = [(child, ()) for child in root.children.values()]
            while stack:
                node, above = stack.pop()
                tokens = above + tuple(node.tokens.tolist())
                depths = range(len(above) + 1, len(tokens) + 1)
                assert [self.content[row] for row in node.rows.tolist()] == [
                    (namespace, tokens[:depth]) for depth in depths
                ]
                kv |= {(namespace, tokens[:d]) for d in depths if d % self.page_size == 0}
                if node.has_checkpoint:
                    checkpoints.add((namespace, tokens))
                stack += [(child, tokens) for child in node.children.values()]
        return kv, checkpoints
