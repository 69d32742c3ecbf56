"""The prefix cache and its naive twin side by side: each verb runs on both and must do the same.

Knows no Hypothesis; the tests that drive it choose operations at random, each in their own way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from twinpool.errors import OutOfRows
from twinpool.memory.audit import Holdings, audit
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.naive import NaivePrefixCache
from twinpool.memory.naive_prefixes import Prefix
from twinpool.memory.node import Node
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.work import PrefillWork

Slots = tuple[int, int]
WORK = PrefillWork(flops_per_row=7, flops_per_pair=1, row_bytes=2, slot_bytes=9)
# Not 1: the oldest of the best and the newest of the worst would be worth the same.
ALPHA = Fraction(7, 10)


@dataclass(eq=False)
class User:
    """One running request, in both caches."""

    namespace: str
    tokens: tuple[int, ...]
    node: Node
    prefix: Prefix
    has_match: bool
    matched_node: Node
    matched_prefix: Prefix
    # Where periodic checkpoints were left, in both.
    periodic: list[tuple[Node, Prefix]] = field(default_factory=list)


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
        self.users: list[User] = []
        # The prefix that each row was last written for.
        self.content: dict[int, Prefix] = {}
        # Slots and rows taken and not given to a tree.
        self.spare_slots: list[Slots] = []
        self.spare_rows: list[np.ndarray] = []

    def begin(self, namespace: str, tokens: tuple[int, ...]) -> User:
        """Match and lock."""
        found = self.real.match(namespace, np.array(tokens, dtype=np.int32))
        expected = self.naive.match(namespace, tokens)
        assert (found.depth, found.kv_depth) == (expected.depth, expected.kv_depth)
        assert found.depth <= found.kv_depth < len(tokens)
        node, prefix = self.real.lock(found), self.naive.lock(expected)
        assert node.depth == found.depth == len(prefix[1])
        user = User(namespace, tokens, node, prefix, node.has_checkpoint, node, prefix)
        self.users.append(user)
        return user

    def extend(
        self,
        user: User,
        more: tuple[int, ...],
        places: set[int],
        *,
        may_evict: bool,
        first_to_go: bool,
    ) -> None:
        """Compute what is missing, leave checkpoints where there are slots, insert all of it."""
        user.tokens += more
        start = user.node.depth
        end = len(user.tokens) // self.page_size * self.page_size
        rows = self.take_rows(end - start) if end > start else None
        if rows is None:
            return
        checkpoints = []
        if self.needs_state:
            floored = {depth // self.page_size * self.page_size for depth in places} | {end}
            for depth in sorted(depth for depth in floored if start < depth <= end):
                slots = self.take_slot(may_evict=may_evict)
                if slots is not None:
                    checkpoints.append((depth, slots))
            if not checkpoints:
                self.give_rows(rows)
                return
            end = checkpoints[-1][0]
            self.give_rows(rows[end - start :])
            rows = rows[: end - start]
        self._insert(user, rows, checkpoints, end, first_to_go=first_to_go)

    def copy_match(self, user: User) -> None:
        """Let go of the matched checkpoint."""
        if user.has_match:
            user.has_match = False
            self.real.release_checkpoint(user.matched_node)
            self.naive.release_checkpoint(user.matched_prefix)

    def roll(self, user: User) -> None:
        """Drop the periodic checkpoints that a deeper one has replaced."""
        for node, prefix in user.periodic:
            assert self.real.drop_interior(node) == self.naive.drop_interior(prefix)
        user.periodic.clear()

    def claim(self, user: User) -> None:
        """Take the checkpoint at the end of a locked path out, as it is."""
        if user.node.has_checkpoint and not user.node.slot_locks:
            slots = (
                self.real.claim_checkpoint(user.node),
                self.naive.claim_checkpoint(user.prefix),
            )
            self.spare_slots.append(slots)

    def end(self, user: User) -> None:
        """End a request."""
        self.copy_match(user)
        self.real.unlock(user.node)
        self.naive.unlock(user.prefix)
        self.users.remove(user)

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

    def check(self) -> None:
        """Compare everything that can be seen from outside, and audit."""
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
        audit(
            real,
            Holdings(
                rows=self.spare_rows,
                slots=[slot for slot, _ in self.spare_slots],
                locked=[user.node for user in self.users],
                locked_checkpoints=[user.matched_node for user in self.users if user.has_match],
            ),
        )

    def close(self) -> None:
        """End everything: whatever happened, all of both pools can be had back."""
        for user in list(self.users):
            self.end(user)
        while self.spare_slots:
            self.give_slot(self.spare_slots.pop())
        while self.spare_rows:
            self.give_rows(self.spare_rows.pop())
        self.check()
        self.flush()
        self.check()
        assert self.real.rows.num_free == self.real.rows.capacity
        assert self.real.slots.num_free == self.real.slots.capacity
        assert not self.real.tree.roots

    def _insert(
        self,
        user: User,
        rows: np.ndarray,
        checkpoints: list[tuple[int, Slots]],
        end: int,
        *,
        first_to_go: bool,
    ) -> None:
        start = user.node.depth
        for depth, row in enumerate(rows.tolist(), start=start + 1):
            self.content[row] = (user.namespace, user.tokens[:depth])
        got = self.real.insert(
            user.namespace,
            user.node,
            np.array(user.tokens[:end], dtype=np.int32),
            np.concatenate([user.node.path_rows(), rows]),
            [(depth, slots[0]) for depth, slots in checkpoints],
            first_to_go=first_to_go,
        )
        expected = self.naive.insert(
            user.prefix,
            user.tokens[:end],
            [(depth, slots[1]) for depth, slots in checkpoints],
            first_to_go=first_to_go,
        )
        span = (got.duplicate_start, got.duplicate_end)
        assert span == (expected.duplicate_start, expected.duplicate_end)
        assert [node.depth for node in got.placed] == expected.placed
        self.give_rows(rows[: span[1] - start])
        for slots in zip(got.surplus_slots, reversed(expected.surplus_slots), strict=True):
            self.give_slot(slots)
        if first_to_go:
            user.periodic += [
                (node, (user.namespace, user.tokens[: node.depth])) for node in got.placed
            ]
        self.real.unlock(user.node)
        self.naive.unlock(user.prefix)
        user.node, user.prefix = got.node, expected.prefix

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
