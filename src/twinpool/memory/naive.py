"""The naive twin of the prefix cache: prefixes as tuples in dicts, every question a linear scan.

The oracle of the tree, its locks and its eviction order; far too slow to serve with. It and what it
is made of share no code with what they check: they know neither the radix tree, nor the allocators,
nor the policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots
from twinpool.memory.naive_books import NaiveBooks, NaiveMark, Record
from twinpool.memory.naive_evictor import NaiveEvictor
from twinpool.memory.naive_gains import Work
from twinpool.memory.naive_order import COLDEST, NaiveMarconi, NaiveOrder
from twinpool.memory.naive_prefixes import Prefix, cut_at, depth_of, pages_of
from twinpool.memory.naive_value import NaiveValue

POLICIES = ("lru", "joint-lru", "block-lru", "marconi", "value")


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
        work: For `marconi` and `value`: operations per row and per pair of rows, bytes of a row and
            a slot.
        alpha: For `marconi`: weight of the efficiency.

    Attributes:
        books: What is cached, locked and free.
        value: What units are worth, where the policy is by value; else None.

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
        work: Work = (1, 0, 1, 1),
        alpha: Fraction = Fraction(1),
    ) -> None:
        if policy not in POLICIES:
            raise ConfigError(
                f"unknown eviction policy {policy!r}", hint=f"one of {', '.join(POLICIES)}"
            )
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
        self.value = NaiveValue(self.books, work) if policy == "value" else None
        marconi = NaiveMarconi(self.books, work, alpha) if policy == "marconi" else None
        order = NaiveOrder(self.books, policy, self.value or marconi)
        frees_leaf = policy != "block-lru"
        self._evictor = NaiveEvictor(self.books, order, self.value, frees_leaf=frees_leaf)

    def match(self, namespace: str, tokens: Sequence[int]) -> NaiveMatch:
        """Find the deepest KV and the deepest usable prefix of a prompt; changes nothing."""
        pages = pages_of((namespace, tuple(tokens[:-1])), self.page_size)
        known = [prefix for prefix in pages if prefix in self.books.kv]
        usable = [p for p in known if p in self.books.checkpoints] if self.needs_state else known
        best = max(usable, key=depth_of, default=(namespace, ()))
        return NaiveMatch(best, depth_of(best), max(map(depth_of, known), default=0))

    def lock(self, match: NaiveMatch) -> Prefix:
        """Lock a match's KV and checkpoint; returns the prefix to unlock later."""
        prefix, books = match.prefix, self.books
        books.now += 1
        if match.depth:
            books.cuts.add(prefix)
            books.row_locks.append(prefix)
            books.touch(prefix)
            books.mark(prefix).hits += 1
            if prefix in books.checkpoints:
                books.slot_locks.append(prefix)
                books.checkpoints[prefix] = books.now
        return prefix

    def touch(self, match: NaiveMatch) -> None:
        """Make what was matched recent, whole segments of it, without locking it."""
        if match.depth:
            self.books.now += 1
            self.books.touch(self.books.segment_end(match.prefix))
            if match.prefix in self.books.checkpoints:
                self.books.checkpoints[match.prefix] = self.books.now

    def note_demand(self, namespace: str, tokens: Sequence[int], match: NaiveMatch) -> None:
        """Hear of a prompt that has arrived, and of what it finds."""
        assert self.value is not None
        self.books.now += 1
        self.value.note_prompt((namespace, tuple(tokens)), match.prefix)
        self.touch(match)

    def want(self, match: NaiveMatch) -> NaiveMark:
        """Hear that a waiting request would reuse what it matches; returns what to `unwant`."""
        mark = self.books.mark(self.books.segment_end(match.prefix))
        mark.num_wanting += 1
        return mark

    def unwant(self, mark: NaiveMark) -> None:
        """Take back one `want`; what was wanted may have gone since."""
        mark.num_wanting -= 1

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
            self._evictor.evict_for_rows()
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
            self._evictor.evict_for_slot()
        return books.free_slots.pop() if books.takable_slots else None

    def insert(
        self,
        start: Prefix,
        tokens: Sequence[int],
        checkpoints: Iterable[tuple[int, int]],
        *,
        first_to_go: bool = False,
        kinds: Mapping[int, str] | None = None,
        generation: int = 0,
    ) -> NaiveInserted:
        """Put a prefix and checkpoints at depths of it in, lock it, then apply the path cap.

        Args:
            start: What the caller has locked, or a root; its namespace is the prefix's.
            tokens: Ids from depth 0 on, whole pages.
            checkpoints: `(depth, slot)`.
            first_to_go: The checkpoints are the coldest of all.
            kinds: Why checkpoints are left, by depth.
            generation: Turns of the session that were cached before.

        Returns:
            What was given back. The caller had rows for all tokens behind `start`; it keeps those
            of the duplicates.
        """
        books = self.books
        books.now += 1
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
                    books.checkpoints[place] = books.now
            else:
                result.placed.append(depth)
                books.place(place, slot, books.now + (COLDEST if first_to_go else 0))
                mark = books.mark(place)
                mark.kind, mark.hits = (kinds or {}).get(depth, "kv"), 0
                mark.generation = generation
        books.row_locks.append(end)
        books.touch(end)
        if result.placed and self.max_states_per_path > 0:
            books.apply_cap(end, self.max_states_per_path)
        return result

    def admit_checkpoint(
        self, start: Prefix, new: Prefix, above: int | None, kind: str, generation: int
    ) -> bool:
        """Decide whether a checkpoint is worth what would be evicted for it.

        Args:
            start: What its request has locked, or a root.
            new: Its prefix.
            above: Depth of the checkpoint before it; None: it is cached.
            kind: Why it would be left.
            generation: Turns of the session that were cached before.
        """
        books = self.books
        if self.value is None or books.takable_slots:
            return True
        victims = books.holders() + (books.leaves() if books.budget is not None else [])
        least = min((self.value.worth(prefix) for prefix in victims), default=None)
        return self.value.admits(start, new, above, kind, generation, least)

    def drop_interior(self, prefix: Prefix) -> bool:
        """Give up a periodic checkpoint that nobody waits for, used, locked or shared; no end."""
        books = self.books
        is_periodic = books.checkpoints.get(prefix, 0) < 0 and not books.mark(prefix).num_wanting
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
        self._evictor.flush()
        return not self.books.kv

    def drain_evictions(self) -> list[Record]:
        """Return what was evicted since the last call, in order."""
        drained, self.books.log = self.books.log, []
        return drained
