"""Twins of the queue orders: in every pass all that wait are sorted anew, by keys of their own.

Slow and obvious: no rank is kept from one pass to the next, and the discount for waiting is
counted from the clock as it stands.
"""

from __future__ import annotations

from collections import Counter

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE, known_match
from twinpool.scheduling.least_work import AGEING, REFRESHED
from twinpool.scheduling.request import Request
from twinpool.scheduling.waiting import Waiting
from twinpool.scheduling.work_clock import WorkClock


class SortedLeastWork:
    """All of the queue by what is left of each and how long it has waited, in exact numbers."""

    name = "least-work"
    is_sparing = True
    counts_passes = False

    def __init__(self, clock: WorkClock) -> None:
        self._clock = clock
        self._next_refreshed = 0

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        queue = list(waiting.by_id.values())
        is_long = len(queue) > MAX_MATCHED_QUEUE
        for request in queue:
            if request.known_match is None or not is_long:
                known_match(request, cache)
        if is_long:
            first = self._next_refreshed % len(queue)
            for request in queue[first : first + REFRESHED]:
                known_match(request, cache)
            self._next_refreshed = first + REFRESHED
        queue.sort(key=self._key)
        if is_long:
            for request in queue[:REFRESHED]:
                known_match(request, cache)
            queue = sorted(queue[:MAX_MATCHED_QUEUE], key=self._key)
        return queue[:count]

    def _key(self, request: Request) -> tuple[int, int]:
        depth = request.known_match.depth if request.known_match else 0
        left = self._clock.work.saved(depth, request.num_tokens)
        waited = self._clock.now - request.arrived_at
        part, whole = AGEING.as_integer_ratio()
        return (whole * left - part * waited, request.number)


class SortedArrivals:
    """All of the queue by arrival."""

    name = "fcfs"
    is_sparing = False
    counts_passes = False

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        return sorted(waiting.by_id.values(), key=lambda request: request.number)


class SortedLpm:
    """All of the queue by match, who was passed over too often first; a long one by arrival.

    Attributes:
        num_passed: How often each was passed over, by number; whoever starts a request counts.
        max_passed: How often it may be.
    """

    name = "lpm"
    is_sparing = False
    counts_passes = False

    def __init__(self, max_passed: int) -> None:
        self.max_passed = max_passed
        self.num_passed: Counter[int] = Counter()

    def note_start(self, request: Request, waiting: Waiting) -> None:
        for other in waiting.by_id.values():
            self.num_passed[other.number] += other.number < request.number

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        if len(waiting) > MAX_MATCHED_QUEUE:
            return sorted(waiting.by_id.values(), key=lambda request: request.number)
        return sorted(waiting.by_id.values(), key=lambda request: self._key(request, cache))

    def _key(self, request: Request, cache: PrefixCache) -> tuple[bool, int, int]:
        is_overdue = self.num_passed[request.number] >= self.max_passed
        depth = 0 if is_overdue else known_match(request, cache).depth
        return (not is_overdue, -depth, request.number)
