"""Least work: the waiting request with the least left to compute goes first, and waiting counts.

What is left after reuse decides, so a session whose memory is resident goes before one that would
push it out. Every request that waits is given a discount that grows with the work done meanwhile:
nobody is overtaken for ever, and those who have waited long come in few at a time. Knows the
cache's matches and the work clock; no pool sizes and no time of day.
"""

from __future__ import annotations

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE, known_match
from twinpool.scheduling.request import Request
from twinpool.scheduling.waiting import Waiting
from twinpool.scheduling.work_clock import WorkClock

# Part of the work done while a request waits by which it counts as less work itself.
AGEING = 0.2
# Requests of a long queue that are matched anew at its head, and so many more in turn.
REFRESHED = 32


class LeastWork:
    """Least work left first, less what waiting has earned.

    The discount grows alike for all that wait, so their order hangs on what is left of each and on
    when it came, and stays as it is until a match changes: a long queue is kept sorted.

    Args:
        clock: What has been computed so far.
        ageing: Discount per unit of work done while a request waits, above 0.
    """

    name = "least-work"
    is_sparing = True
    counts_passes = False

    def __init__(self, clock: WorkClock, ageing: float = AGEING) -> None:
        self._work = clock.work
        # In whole numbers: rounding would now and then let the younger of two equals go first.
        self._ageing, self._unit = ageing.as_integer_ratio()
        self._next_refreshed = 0

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        """Return the first `count` requests by what is left of each; of equals the older first.

        Of a long queue only the head and a few more in turn are matched anew each time, and the
        others are ordered by what they matched when they were looked at last; no more of it than
        `MAX_MATCHED_QUEUE` are returned.

        Changes:
            What requests remember of their matches, what the cache hears that they want, and their
            ranks.
        """
        if len(waiting) <= MAX_MATCHED_QUEUE:
            waiting.ranked.clear()
            waiting.doubtful.clear()
            queue = list(waiting.by_id.values())
            for request in queue:
                known_match(request, cache)
            return sorted(queue, key=self._key)[:count]
        self._rank(waiting, cache)
        queue = waiting.ranked.first(MAX_MATCHED_QUEUE)
        for request in queue[:REFRESHED]:
            known_match(request, cache)
        queue.sort(key=self._key)
        # Their matches may have changed since they were given ranks.
        waiting.doubtful = {request.number: request for request in queue}
        return queue[:count]

    def _rank(self, waiting: Waiting, cache: PrefixCache) -> None:
        """Rank all that wait, having matched those that are new, and a few others in turn."""
        ranked, new = waiting.ranked, waiting.unranked()
        for request in new:
            if request.known_match is None:
                known_match(request, cache)
        first = self._next_refreshed % len(waiting)
        in_turn = waiting.between(first, first + REFRESHED)
        for request in in_turn:
            known_match(request, cache)
        self._next_refreshed = first + REFRESHED
        ranked.place_all(new, [self._key(request)[0] for request in new])
        for request in (*in_turn, *waiting.doubtful.values()):
            ranked.place(request, self._key(request)[0])

    def _key(self, request: Request) -> tuple[int, int]:
        """Return what orders requests at any time: what is left, and when the discount began."""
        match = request.known_match
        left = self._work.saved(0 if match is None else match.depth, request.num_tokens)
        return (left * self._unit + self._ageing * request.arrived_at, request.number)
