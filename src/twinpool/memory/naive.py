"""The naive twin of the prefix cache: prefixes as tuples in dicts, every question a linear scan.

The oracle of the tree, its locks and its eviction order; far too slow to serve with. Shares no
code with what it checks: knows neither the radix tree, nor the allocators, nor the policies, and
counts rows and slots without numbering rows.

Where the tree's units depend on how segments were cut, the twin remembers the cuts: the depths at
which a prefix once ended, forked, was locked or took a checkpoint, and still has its KV.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots

# Namespace and token ids, whole pages; the empty tuple is the root.
Prefix = tuple[str, tuple[int, ...]]
# Reason, depth, rows, slots.
Record = tuple[str, int, int, int]

COLDEST = -(10**15)
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
    """The slow, obvious prefix cache; verbs and meaning as in `PrefixCache`.

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
        self.keeps_dead = (keeps_dead and policy == "lru") or policy == "block-lru"
        self.budget = budget
        self.work = work
        self.alpha = alpha
        self._num_rows = num_rows
        self._num_slots = num_slots
        self.policy = policy
        self.page_size = page_size
        self.max_states_per_path = max_states_per_path
        self.needs_state = needs_state
        self.num_free_rows = num_rows
        self.free_slots = set(range(1, num_slots + 1))
        # Recency by prefix. A prefix in `kv` stands for the page that it ends with.
        self.kv: dict[Prefix, int] = {}
        self.checkpoints: dict[Prefix, int] = {}
        self.slot_of: dict[Prefix, int] = {}
        self.cuts: set[Prefix] = set()
        self.row_locks: list[Prefix] = []
        self.slot_locks: list[Prefix] = []
        self._tick = 0
        self._log: list[Record] = []

    @property
    def evictable_rows(self) -> int:
        """Rows in the cache under no lock."""
        return self.page_size * sum(not self._is_locked(prefix) for prefix in self.kv)

    @property
    def evictable_slots(self) -> int:
        """Checkpoints under no lock of their own."""
        return sum(prefix not in self.slot_locks for prefix in self.checkpoints)

    @property
    def available_rows(self) -> int:
        """Rows that are free or evictable."""
        rows = self.num_free_rows + self.evictable_rows
        if self.budget is None:
            return rows
        _, page_cost, slot_cost = self.budget
        evictable = self.evictable_rows // self.page_size * page_cost
        evictable += self.evictable_slots * slot_cost
        return min(rows, (self._left() + evictable) // page_cost * self.page_size)

    @property
    def available_slots(self) -> int:
        """Slots that are free or evictable."""
        slots = len(self.free_slots) + self.evictable_slots
        if self.budget is None:
            return slots
        _, page_cost, slot_cost = self.budget
        evictable = self.evictable_rows // self.page_size * page_cost
        evictable += self.evictable_slots * slot_cost
        return min(slots, (self._left() + evictable) // slot_cost)

    @property
    def takable_rows(self) -> int:
        """Rows that could be taken now without an eviction."""
        if self.budget is None:
            return self.num_free_rows
        return min(self.num_free_rows, self._left() // self.budget[1] * self.page_size)

    @property
    def takable_slots(self) -> int:
        """Slots that could be taken now without an eviction."""
        if self.budget is None:
            return len(self.free_slots)
        return min(len(self.free_slots), self._left() // self.budget[2])

    def match(self, namespace: str, tokens: Sequence[int]) -> NaiveMatch:
        """Find the deepest KV and the deepest usable prefix of a prompt; changes nothing."""
        pages = _prefixes((namespace, tuple(tokens[:-1])), self.page_size)
        known = [prefix for prefix in pages if prefix in self.kv]
        usable = [p for p in known if p in self.checkpoints] if self.needs_state else known
        best = max(usable, key=_depth, default=(namespace, ()))
        return NaiveMatch(best, _depth(best), max(map(_depth, known), default=0))

    def lock(self, match: NaiveMatch) -> Prefix:
        """Lock a match's KV and checkpoint; returns the prefix to unlock later."""
        self._tick += 1
        prefix = match.prefix
        if match.depth:
            self.cuts.add(prefix)
            self.row_locks.append(prefix)
            self._touch(prefix)
            if prefix in self.checkpoints:
                self.slot_locks.append(prefix)
                self.checkpoints[prefix] = self._tick
        return prefix

    def release_checkpoint(self, prefix: Prefix) -> None:
        """Take one lock of a checkpoint away, if there is one."""
        if prefix in self.slot_locks:
            self.slot_locks.remove(prefix)

    def unlock(self, prefix: Prefix) -> None:
        """Take one lock of a path away and drop what is dead then; a root is ignored."""
        if _depth(prefix):
            self.row_locks.remove(prefix)
            self._sweep()

    def take_rows(self, num_rows: int) -> int:
        """Take rows, whole pages, evicting in the policy's order; returns how many.

        Raises:
            OutOfRows: If too few could be had; nothing is evicted then.
        """
        needed = -(-num_rows // self.page_size) * self.page_size
        if needed > self.available_rows:
            raise OutOfRows(needed=num_rows, free=self.num_free_rows, evictable=self.evictable_rows)
        while self.takable_rows < needed:
            if self.budget is None:
                self._drop_leaf(self._first(self._leaves(), self._leaf_key), "rows")
            else:
                self._evict_any("rows")
        self.num_free_rows -= needed
        return needed

    def give_rows(self, num_rows: int) -> None:
        """Take back rows that the caller owned."""
        self.num_free_rows += num_rows

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
        while not self.takable_slots and may_evict and self.available_slots:
            if self.budget is None:
                victims = self._holders()
                self._evict_checkpoint(self._first(victims, self._checkpoint_key), "slots")
            else:
                self._evict_any("slots")
        return self.free_slots.pop() if self.takable_slots else None

    def give_slot(self, slot: int) -> None:
        """Take back a slot that the caller owned."""
        if slot in self.free_slots:
            raise InvariantError(f"state slot {slot} is given back but not in use")
        self.free_slots.add(slot)

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
        end: Prefix = (start[0], tuple(tokens))
        pages = _prefixes(end, self.page_size)
        known = max((_depth(p) for p in pages if p in self.kv), default=0)
        result = NaiveInserted(end, _depth(start), known)
        self.kv |= {prefix: 0 for prefix in pages if prefix not in self.kv}
        self.cuts |= {_cut(end, known), end} - {_cut(end, 0)}
        for depth, slot in checkpoints:
            place = _cut(end, depth)
            self.cuts.add(place)
            if place in self.checkpoints:
                result.surplus_slots.append(slot)
            else:
                result.placed.append(depth)
                self.slot_of[place] = slot
            if place not in self.checkpoints or not first_to_go:
                self.checkpoints[place] = self._tick + (COLDEST if first_to_go else 0)
        self.row_locks.append(end)
        self._touch(end)
        if result.placed and self.max_states_per_path > 0:
            self._apply_cap(end)
        return result

    def drop_interior(self, prefix: Prefix) -> bool:
        """Give up a periodic checkpoint, unless it is used, locked, a fork or the path's end."""
        is_periodic = self.checkpoints.get(prefix, 0) < 0
        if not is_periodic or prefix in self.slot_locks or self._num_branches(prefix) != 1:
            return False
        self._drop_checkpoint(prefix, "rolling")
        return True

    def claim_checkpoint(self, prefix: Prefix) -> int:
        """Take a checkpoint out; the caller owns its slot."""
        if prefix in self.slot_locks:
            raise InvariantError("a checkpoint is claimed that is locked")
        del self.checkpoints[prefix]
        return self.slot_of.pop(prefix)

    def flush(self) -> bool:
        """Drop everything that is not locked; True when nothing is left."""
        while leaves := self._leaves():
            self._drop_leaf(self._first(leaves, self._leaf_key), "flush")
        while victims := [p for p in self.checkpoints if p not in self.slot_locks]:
            self._drop_checkpoint(self._first(victims, self._checkpoint_key), "flush")
        return not self.kv

    def drain_evictions(self) -> list[Record]:
        """Return what was evicted since the last call, in order."""
        drained, self._log = self._log, []
        return drained

    def _is_locked(self, prefix: Prefix) -> bool:
        return any(_starts_with(locked, prefix) for locked in self.row_locks)

    def _num_branches(self, prefix: Prefix) -> int:
        longer = _depth(prefix) + self.page_size
        return sum(_depth(other) == longer and _starts_with(other, prefix) for other in self.kv)

    def _is_end(self, prefix: Prefix) -> bool:
        return self._num_branches(prefix) == 0

    def _leaves(self) -> list[Prefix]:
        return [p for p in self.kv if self._is_end(p) and not self._is_locked(p)]

    def _holders(self) -> list[Prefix]:
        return [p for p in self.checkpoints if p not in self.slot_locks]

    def _left(self) -> int:
        assert self.budget is not None
        total, page_cost, slot_cost = self.budget
        pages = (self._num_rows - self.num_free_rows) // self.page_size
        return total - pages * page_cost - (self._num_slots - len(self.free_slots)) * slot_cost

    def _evict_any(self, reason: str) -> None:
        """Evict the first of all leaves and checkpoints; of equals the checkpoint goes."""
        leaves, holders = self._leaves(), self._holders()
        units = [(self._leaf_key(p), -_depth(p), True, p) for p in leaves]
        units += [(self._checkpoint_key(p), -_depth(p), False, p) for p in holders]
        _, _, is_leaf, prefix = min(units, key=lambda unit: unit[:3])
        if is_leaf:
            self._drop_leaf(prefix, reason)
        else:
            self._evict_checkpoint(prefix, reason)

    def _score(self, prefix: Prefix) -> tuple[bool, Fraction]:
        """Return recency plus alpha times efficiency, both between 0 and 1 over all entries."""
        entries = set(self._leaves()) | set(self._holders())
        used = [self._used(entry) for entry in entries if self._used(entry) > 0] or [0]
        gains = [self._efficiency(entry) for entry in entries]
        recency = Fraction(self._used(prefix) - min(used), max(max(used) - min(used), 1))
        spread = max(gains) - min(gains)
        gain = (self._efficiency(prefix) - min(gains)) / spread if spread else Fraction(0)
        return self._num_branches(prefix) > 1, recency + self.alpha * gain

    def _used(self, prefix: Prefix) -> int:
        return self.checkpoints.get(prefix, self.kv[prefix])

    def _efficiency(self, prefix: Prefix) -> Fraction:
        """Return the operations saved over the checkpoint above, per byte that would be freed."""
        per_row, per_pair, row_bytes, slot_bytes = self.work
        above = [p for p in self.checkpoints if p != prefix and _starts_with(prefix, p)]
        start, end = max(map(_depth, above), default=0), _depth(prefix)
        saved = sum(per_row + per_pair * depth for depth in range(start + 1, end + 1))
        freed = slot_bytes * (prefix in self.checkpoints)
        if self._is_end(prefix) and not self._is_locked(prefix):
            freed += row_bytes * (end - start)
        return Fraction(saved, max(freed, 1))

    def _leaf_key(self, prefix: Prefix) -> object:
        if self.policy == "marconi":
            return self._score(prefix)
        if self.policy != "joint-lru":
            return self.kv[prefix]
        return max(self.kv[prefix], self.checkpoints.get(prefix, COLDEST))

    def _checkpoint_key(self, prefix: Prefix) -> object:
        if self.policy == "marconi":
            return self._score(prefix)
        if self._is_end(prefix) and not self._is_locked(prefix) and self.policy == "joint-lru":
            return self._leaf_key(prefix)
        return self.checkpoints[prefix]

    def _first(self, prefixes: list[Prefix], key: object) -> Prefix:
        assert callable(key)
        # Of equals the deepest goes: what is shared by more stays.
        return min(prefixes, key=lambda prefix: (key(prefix), -_depth(prefix)))

    def _evict_checkpoint(self, prefix: Prefix, reason: str) -> None:
        is_leaf = self._is_end(prefix) and not self._is_locked(prefix)
        if is_leaf and self.policy != "block-lru":
            self._drop_leaf(prefix, reason)
        else:
            self._drop_checkpoint(prefix, reason)

    def _drop_checkpoint(self, prefix: Prefix, reason: str) -> None:
        del self.checkpoints[prefix]
        self.free_slots.add(self.slot_of.pop(prefix))
        self._log.append((reason, _depth(prefix), 0, 1))

    def _drop_leaf(self, end: Prefix, reason: str) -> None:
        """Drop the KV back to the last cut, with the checkpoint at the end."""
        above = [p for p in self.cuts if p != end and _starts_with(end, p)]
        start = max(map(_depth, above), default=0)
        num_slots = int(end in self.checkpoints)
        if num_slots:
            del self.checkpoints[end]
            self.free_slots.add(self.slot_of.pop(end))
        self._drop_kv(prefix for prefix in _prefixes(end, self.page_size) if _depth(prefix) > start)
        self._log.append((reason, _depth(end), _depth(end) - start, num_slots))
        self._sweep()

    def _drop_kv(self, prefixes: Iterable[Prefix]) -> None:
        for prefix in prefixes:
            del self.kv[prefix]
            self.cuts.discard(prefix)
            self.num_free_rows += self.page_size

    def _sweep(self) -> None:
        """Drop dead KV: no checkpoint at it or below it, and no lock."""
        if not self.needs_state or self.keeps_dead:
            return
        dead = [
            prefix
            for prefix in self.kv
            if not self._is_locked(prefix)
            and not any(_starts_with(place, prefix) for place in self.checkpoints)
        ]
        if dead:
            self._drop_kv(dead)
            rows = len(dead) * self.page_size
            self._log.append(("dead", max(map(_depth, dead)), rows, 0))

    def _apply_cap(self, end: Prefix) -> None:
        holders = [p for p in _prefixes(end, self.page_size) if p in self.checkpoints]
        surplus = len(holders) - self.max_states_per_path
        droppable = [
            prefix
            for prefix in holders
            if prefix != end and prefix not in self.slot_locks and self._num_branches(prefix) == 1
        ]
        for prefix in droppable[: max(0, surplus)]:
            self._drop_checkpoint(prefix, "path_cap")

    def _touch(self, end: Prefix) -> None:
        for prefix in _prefixes(end, self.page_size):
            self.kv[prefix] = self._tick


def _depth(prefix: Prefix) -> int:
    return len(prefix[1])


def _cut(prefix: Prefix, depth: int) -> Prefix:
    return (prefix[0], prefix[1][:depth])


def _prefixes(end: Prefix, page_size: int) -> list[Prefix]:
    """Return all prefixes of whole pages, shortest first, the empty one left out."""
    return [_cut(end, depth) for depth in range(page_size, _depth(end) + 1, page_size)]


def _starts_with(prefix: Prefix, start: Prefix) -> bool:
    return prefix[0] == start[0] and prefix[1][: _depth(start)] == start[1]
