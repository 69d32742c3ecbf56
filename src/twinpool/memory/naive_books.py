"""The naive twin's books: which prefixes have KV and checkpoints, what is locked, what is free.

Counts rows and slots without numbering rows, by linear scans. Says what could go, and takes out
what it is told; does not know which goes first.

Where the tree's units depend on how segments were cut, the books remember the cuts: the depths at
which a prefix once ended, forked, was locked or took a checkpoint, and still has its KV.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twinpool.errors import InvariantError
from twinpool.memory.naive_prefixes import Prefix, depth_of, pages_of, starts_with

# Reason, depth, rows, slots.
Record = tuple[str, int, int, int]


@dataclass(eq=False, slots=True)
class NaiveMark:
    """What is known of a unit beside its use; it lasts as long as the KV at its end.

    Attributes:
        kind: Why its checkpoint was left.
        hits: Requests that have gone on from here since it was left.
        generation: Turns of its session that were cached before it.
        num_wanting: Waiting requests that would reuse what ends here.
    """

    kind: str = "kv"
    hits: int = 0
    generation: int = 0
    num_wanting: int = 0


class NaiveBooks:
    """What is cached, locked and free.

    Args:
        num_rows: Rows in the KV pool.
        num_slots: Slots in the state pool.
        page_size: Rows of a page.
        needs_state: False for a model without linear layers.
        keeps_dead: True to keep KV that no checkpoint makes usable.
        budget: `(total, cost of a page, cost of a slot)` of one memory for both; None: two pools.

    Attributes:
        now: Counts what happens to the cache.
        kv: When KV was last used, by prefix; each stands for the page that it ends with.
        checkpoints: When a checkpoint was last used, by prefix.
        cuts: Prefixes at which segments end.
        row_locks: Locked prefixes, once for each lock.
        slot_locks: Prefixes whose checkpoints are locked, once for each lock.
        log: What was evicted, in order.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        num_slots: int,
        page_size: int,
        needs_state: bool,
        keeps_dead: bool,
        budget: tuple[int, int, int] | None,
    ) -> None:
        self.page_size = page_size
        self.needs_state = needs_state
        self.keeps_dead = keeps_dead
        self.budget = budget
        self._num_rows = num_rows
        self._num_slots = num_slots
        self.now = 0
        self.num_free_rows = num_rows
        self.free_slots = set(range(1, num_slots + 1))
        self.kv: dict[Prefix, int] = {}
        self.checkpoints: dict[Prefix, int] = {}
        self.cuts: set[Prefix] = set()
        self.row_locks: list[Prefix] = []
        self.slot_locks: list[Prefix] = []
        self.log: list[Record] = []
        self._slot_of: dict[Prefix, int] = {}
        self._marks: dict[Prefix, NaiveMark] = {}

    @property
    def evictable_rows(self) -> int:
        """Rows in the cache under no lock."""
        return self.page_size * sum(not self.is_locked(prefix) for prefix in self.kv)

    @property
    def evictable_slots(self) -> int:
        """Checkpoints under no lock of their own."""
        return len(self.holders())

    @property
    def available_rows(self) -> int:
        """Rows that are free or evictable."""
        rows = self.num_free_rows + self.evictable_rows
        if self.budget is None:
            return rows
        page_cost = self.budget[1]
        return min(rows, (self._left() + self._evictable_cost()) // page_cost * self.page_size)

    @property
    def available_slots(self) -> int:
        """Slots that are free or evictable."""
        slots = len(self.free_slots) + self.evictable_slots
        if self.budget is None:
            return slots
        return min(slots, (self._left() + self._evictable_cost()) // self.budget[2])

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

    def give_slot(self, slot: int) -> None:
        """Take back a slot that the caller owned."""
        if slot in self.free_slots:
            raise InvariantError(f"state slot {slot} is given back but not in use")
        self.free_slots.add(slot)

    def is_locked(self, prefix: Prefix) -> bool:
        """True when somebody has locked it or more of its path."""
        return any(starts_with(locked, prefix) for locked in self.row_locks)

    def num_branches(self, prefix: Prefix) -> int:
        """Return how many ways the KV goes on from a prefix."""
        longer = depth_of(prefix) + self.page_size
        return sum(depth_of(other) == longer and starts_with(other, prefix) for other in self.kv)

    def is_leaf(self, prefix: Prefix) -> bool:
        """True when KV ends here and nobody has locked it."""
        return self.num_branches(prefix) == 0 and not self.is_locked(prefix)

    def leaves(self) -> list[Prefix]:
        """Return where KV ends that could go."""
        return [prefix for prefix in self.kv if self.is_leaf(prefix)]

    def holders(self) -> list[Prefix]:
        """Return the checkpoints that could go."""
        return [prefix for prefix in self.checkpoints if prefix not in self.slot_locks]

    def mark(self, prefix: Prefix) -> NaiveMark:
        """Return what is known of a unit."""
        return self._marks.setdefault(prefix, NaiveMark())

    def used(self, prefix: Prefix) -> int:
        """Return when a unit was last used: its checkpoint, or KV that needs none."""
        return self.checkpoints.get(prefix, self.kv[prefix])

    def holder_above(self, prefix: Prefix) -> Prefix | None:
        """Return the nearest checkpoint that is shallower, if there is one."""
        above = [p for p in self.checkpoints if p != prefix and starts_with(prefix, p)]
        return max(above, key=depth_of, default=None)

    def segment_end(self, prefix: Prefix) -> Prefix:
        """Return where the segment ends in which a prefix does."""
        return min((cut for cut in self.cuts if starts_with(cut, prefix)), key=depth_of)

    def touch(self, end: Prefix) -> None:
        """Note that the KV of a path is used now."""
        for prefix in pages_of(end, self.page_size):
            self.kv[prefix] = self.now

    def place(self, prefix: Prefix, slot: int, used: int) -> None:
        """Put a checkpoint where there is none."""
        self._slot_of[prefix] = slot
        self.checkpoints[prefix] = used

    def claim(self, prefix: Prefix) -> int:
        """Take a checkpoint out; the caller owns its slot."""
        del self.checkpoints[prefix]
        return self._slot_of.pop(prefix)

    def drop_checkpoint(self, prefix: Prefix, reason: str) -> None:
        """Take a checkpoint out, free its slot and leave its KV."""
        self.free_slots.add(self.claim(prefix))
        self.log.append((reason, depth_of(prefix), 0, 1))

    def drop_leaf(self, end: Prefix, reason: str) -> None:
        """Drop the KV back to the last cut, with the checkpoint at the end, and what is dead."""
        above = [p for p in self.cuts if p != end and starts_with(end, p)]
        start = max(map(depth_of, above), default=0)
        num_slots = int(end in self.checkpoints)
        if num_slots:
            self.free_slots.add(self.claim(end))
        self._drop_kv(p for p in pages_of(end, self.page_size) if depth_of(p) > start)
        self.log.append((reason, depth_of(end), depth_of(end) - start, num_slots))
        self.sweep()

    def sweep(self) -> None:
        """Drop dead KV: no checkpoint at it or below it, and no lock."""
        if not self.needs_state or self.keeps_dead:
            return
        dead = [
            prefix
            for prefix in self.kv
            if not self.is_locked(prefix)
            and not any(starts_with(place, prefix) for place in self.checkpoints)
        ]
        if dead:
            self._drop_kv(dead)
            rows = len(dead) * self.page_size
            self.log.append(("dead", max(map(depth_of, dead)), rows, 0))

    def apply_cap(self, end: Prefix, max_states: int) -> None:
        """Drop the shallowest checkpoints of a path, as far as it has too many."""
        holders = [p for p in pages_of(end, self.page_size) if p in self.checkpoints]
        surplus = len(holders) - max_states
        droppable = [
            prefix
            for prefix in holders
            if prefix != end and prefix not in self.slot_locks and self.num_branches(prefix) == 1
        ]
        for prefix in droppable[: max(0, surplus)]:
            self.drop_checkpoint(prefix, "path_cap")

    def _drop_kv(self, prefixes: Iterable[Prefix]) -> None:
        for prefix in prefixes:
            del self.kv[prefix]
            self.cuts.discard(prefix)
            self._marks.pop(prefix, None)
            self.num_free_rows += self.page_size

    def _left(self) -> int:
        assert self.budget is not None
        total, page_cost, slot_cost = self.budget
        pages = (self._num_rows - self.num_free_rows) // self.page_size
        return total - pages * page_cost - (self._num_slots - len(self.free_slots)) * slot_cost

    def _evictable_cost(self) -> int:
        assert self.budget is not None
        _, page_cost, slot_cost = self.budget
        pages = self.evictable_rows // self.page_size
        return pages * page_cost + self.evictable_slots * slot_cost
