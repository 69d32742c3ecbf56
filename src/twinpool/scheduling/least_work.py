"""Least work: the waiting request with the least left to compute goes first, and waiting counts.

What is left after reuse decides, so a session whose memory is resident goes before one that would
push it out. Every request that waits is given a discount that grows with the work done meanwhile:
nobody is overtaken for ever, and those who have waited long come in few at a time. Knows the
cache's matches and the work clock; no pool sizes and no time of day.
"""

from __future__ import annotations

from collections.abc import Sequence

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE, known_match
from twinpool.scheduling.request import Request
from twinpool.scheduling.work_clock import WorkClock

# Part of the work done while a request waits by which it counts as less work itself.
AGEING = 0.2
# Requests of a long queue that are matched anew at its head, and so many more in turn.
REFRESHED = 32


class LeastWork:
    """Least work left first, less what waiting has earned.

    Args:
        clock: What has been computed so far.
        ageing: Discount per unit of work done while a request waits, above 0.
    """

    name = "least-work"
    is_sparing = True

    def __init__(self, clock: WorkClock, ageing: float = AGEING) -> None:
        self._clock = clock
        self._ageing = ageing
        self._next_refreshed = 0

    def sort(self, waiting: Sequence[Request], cache: PrefixCache) -> list[Request]:
        """Return the requests by what is left of each; of equals the older first.

        Of a long queue only the head and a few more in turn are matched anew each time, and the
        others are ordered by what they matched when they were looked at last.

        Changes:
            What requests remember of their matches, and what the cache hears that they want.
        """
        queue = list(waiting)
        if len(queue) <= MAX_MATCHED_QUEUE:
            for request in queue:
                known_match(request, cache)
            return sorted(queue, key=self._key)
        for request in queue:
            if request.known_match is None:
                known_match(request, cache)
        first = self._next_refreshed % len(queue)
        for request in queue[first : first + REFRESHED]:
            known_match(request, cache)
        self._next_refreshed = first + REFRESHED
        queue.sort(key=self._key)
        for request in queue[:REFRESHED]:
            known_match(request, cache)
        queue[:MAX_MATCHED_QUEUE] = sorted(queue[:MAX_MATCHED_QUEUE], key=self._key)
        return queue

    def _key(self, request: Request) -> tuple[float, int]:
        match = request.known_match
        depth = 0 if match is None else match.depth
        left = self._clock.work.saved(depth, request.num_tokens)
        waited = self._clock.now - request.arrived_at
        return (left - self._ageing * waited, request.number)
