"""The naive twin of the prefix cache: prefixes as tuples in dicts, every question a linear scan.

The oracle of the tree, its locks and its eviction order; far too slow to serve with. It and what it
is made of share no code with what they check: they know neither the radix tree, nor the allocators,
nor the policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots
from twinpool.memory.naive_books import NaiveBooks, Record
from twinpool.memory.naive_order import COLDEST, NaiveOrder
from twinpool.memory.naive_prefixes import Prefix, cut_at, depth_of, pages_of

POLICIES = ("lru", "joint-lru", "block-lru", "marconi")


@dataclass(frozen=True, slots=True)
class NaiveMatch:
    """What `match` found: the usable prefix, its depth, and how deep KV goes, in tokens."""

    prefix: Prefix
    depth: int
    kv_depth: int


@dataclass(slots=True)
class NaiveInserted:
    """What `insert` gives back; the fields mean what they mean in the tree's `Inserted`."""

    prefix: Prefix
    duplicate_start: int
    duplicate_end: int
    placed: list[int] = field(default_factory=list)
    surplus_slots: list[int] = field(default_factory=list)


class NaivePrefixCache:
    """The slow, obvious prefix cache; verbs and meaning as in `PrefixCache` and its room.

    A locked prefix stands for itself where the other one passes nodes around.

    Args:
        num_rows: Rows in the KV pool.
        num_slots: Slots in the state pool.
        policy: One of `POLICIES`.
        page_size: Rows of a page.
        max_states_per_path: Checkpoints that one path may hold; -1 for no cap.
        needs_state: False for a model without linear layers.
        keeps_dead: For `lru`, True to keep KV that no checkpoint makes usable; `block-lru` always
            does.
        budget: `(total, cost of a page, cost of a slot)` of one memory for both; None: two pools.
        work: For `marconi`: operations per row and per pair of rows, bytes of a row and a slot.
        alpha: For `marconi`: weight of the efficiency.

    Attributes:
        books: What is cached, locked and free.

    Raises:
        ConfigError: If there is no such policy.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        num_slots: int,
        policy: str,
        page_size: int = 1,
        max_states_per_path: int = -1,
        needs_state: bool = True,
        keeps_dead: bool = False,
        budget: tuple[int, int, int] | None = None,
        work: tuple[int, int, int, int] = (1, 0, 1, 1),
        alpha: Fraction = Fraction(1),
    ) -> None:
        if policy not in POLICIES:
            raise ConfigError(
                f"unknown eviction policy {policy!r}", hint=f"one of {', '.join(POLICIES)}"
            )
        self.policy = policy
        self.page_size = page_size
        self.max_states_per_path = max_states_per_path
        self.needs_state = needs_state
        self.books = NaiveBooks(
            num_rows=num_rows,
            num_slots=num_slots,
            page_size=page_size,
            needs_state=needs_state,
            keeps_dead=(keeps_dead and policy == "lru") or policy == "block-lru",
            budget=budget,
        )
        self._order = NaiveOrder(self.books, policy, work, alpha)
        self._tick = 0

    def match(self, namespace: str, tokens: Sequence[int]) -> NaiveMatch:
        """Find the deepest KV and the deepest usable prefix of a prompt; changes nothing."""
        pages = pages_of((namespace, tuple(tokens[:-1])), self.page_size)
        known = [prefix for prefix in pages if prefix in self.books.kv]
        usable = [p for p in known if p in self.books.checkpoints] if self.needs_state else known
        best = max(usable, key=depth_of, default=(namespace, ()))
        return NaiveMatch(best, depth_of(best), max(map(depth_of, known), default=0))

    def lock(self, match: NaiveMatch) -> Prefix:
        """Lock a match's KV and checkpoint; returns the prefix to unlock later."""
        self._tick += 1
        prefix, books = match.prefix, self.books
        if match.depth:
            books.cuts.add(prefix)
            books.row_locks.append(prefix)
            books.touch(prefix, self._tick)
            if prefix in books.checkpoints:
                books.slot_locks.append(prefix)
                books.checkpoints[prefix] = self._tick
        return prefix

    def release_checkpoint(self, prefix: Prefix) -> None:
        """Take one lock of a checkpoint away, if there is one."""
        if prefix in self.books.slot_locks:
            self.books.slot_locks.remove(prefix)

    def unlock(self, prefix: Prefix) -> None:
        """Take one lock of a path away and drop what is dead then; a root is ignored."""
        if depth_of(prefix):
            self.books.row_locks.remove(prefix)
            self.books.sweep()

    def take_rows(self, num_rows: int) -> int:
        """Take rows, whole pages, evicting in the policy's order; returns how many.

        Raises:
            OutOfRows: If too few could be had; nothing is evicted then.
        """
        books = self.books
        needed = -(-num_rows // self.page_size) * self.page_size
        if needed > books.available_rows:
            raise OutOfRows(
                needed=num_rows, free=books.num_free_rows, evictable=books.evictable_rows
            )
        while books.takable_rows < needed:
            if books.budget is None:
                books.drop_leaf(self._order.first_leaf(), "rows")
            else:
                self._evict_any("rows")
        books.num_free_rows -= needed
        return needed

    def give_rows(self, num_rows: int) -> None:
        """Take back rows that the caller owned."""
        self.books.num_free_rows += num_rows

    def take_slot(self) -> int:
        """Take a slot, evicting one checkpoint if none is free.

        Raises:
            OutOfSlots: If none is free and none evictable.
        """
        slot = self.try_take_slot(may_evict=True)
        if slot is None:
            raise OutOfSlots(needed=1, free=0, evictable=0)
        return slot

    def try_take_slot(self, *, may_evict: bool) -> int | None:
        """Take a slot, or None when there is none to be had."""
        books = self.books
        while not books.takable_slots and may_evict and books.available_slots:
            if books.budget is None:
                self._evict_checkpoint(self._order.first_checkpoint(), "slots")
            else:
                self._evict_any("slots")
        return books.free_slots.pop() if books.takable_slots else None

    def insert(
        self,
        start: Prefix,
        tokens: Sequence[int],
        checkpoints: Iterable[tuple[int, int]],
        *,
        first_to_go: bool = False,
    ) -> NaiveInserted:
        """Put a prefix and checkpoints at depths of it in, lock it, then apply the path cap.

        Args:
            start: What the caller has locked, or a root; its namespace is the prefix's.
            tokens: Ids from depth 0 on, whole pages.
            checkpoints: `(depth, slot)`.
            first_to_go: The checkpoints are the coldest of all.

        Returns:
            What was given back. The caller had rows for all tokens behind `start`; it keeps those
            of the duplicates.
        """
        self._tick += 1
        books = self.books
        end: Prefix = (start[0], tuple(tokens))
        pages = pages_of(end, self.page_size)
        known = max((depth_of(p) for p in pages if p in books.kv), default=0)
        result = NaiveInserted(end, depth_of(start), known)
        books.kv |= {prefix: 0 for prefix in pages if prefix not in books.kv}
        books.cuts |= {cut_at(end, known), end} - {cut_at(end, 0)}
        for depth, slot in checkpoints:
            place = cut_at(end, depth)
            books.cuts.add(place)
            if place in books.checkpoints:
                result.surplus_slots.append(slot)
                if not first_to_go:
                    books.checkpoints[place] = self._tick
            else:
                result.placed.append(depth)
                books.place(place, slot, self._tick + (COLDEST if first_to_go else 0))
        books.row_locks.append(end)
        books.touch(end, self._tick)
        if result.placed and self.max_states_per_path > 0:
            books.apply_cap(end, self.max_states_per_path)
        return result

    def drop_interior(self, prefix: Prefix) -> bool:
        """Give up a periodic checkpoint, unless it is used, locked, a fork or the path's end."""
        books = self.books
        is_periodic = books.checkpoints.get(prefix, 0) < 0
        if not is_periodic or prefix in books.slot_locks or books.num_branches(prefix) != 1:
            return False
        books.drop_checkpoint(prefix, "rolling")
        return True

    def claim_checkpoint(self, prefix: Prefix) -> int:
        """Take a checkpoint out; the caller owns its slot."""
        if prefix in self.books.slot_locks:
            raise InvariantError("a checkpoint is claimed that is locked")
        return self.books.claim(prefix)

    def flush(self) -> bool:
        """Drop everything that is not locked; True when nothing is left."""
        books = self.books
        while books.leaves():
            books.drop_leaf(self._order.first_leaf(), "flush")
        while books.holders():
            books.drop_checkpoint(self._order.first_checkpoint(), "flush")
        return not books.kv

    def drain_evictions(self) -> list[Record]:
        """Return what was evicted since the last call, in order."""
        drained, self.books.log = self.books.log, []
        return drained

    def _evict_any(self, reason: str) -> None:
        prefix, is_leaf = self._order.first_of_all()
        if is_leaf:
            self.books.drop_leaf(prefix, reason)
        else:
            self._evict_checkpoint(prefix, reason)

    def _evict_checkpoint(self, prefix: Prefix, reason: str) -> None:
        if self.books.is_leaf(prefix) and self.policy != "block-lru":
            self.books.drop_leaf(prefix, reason)
        else:
            self.books.drop_checkpoint(prefix, reason)
