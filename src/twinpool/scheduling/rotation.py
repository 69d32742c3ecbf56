"""Rotation: how much of the work may go into pushing out what will be wanted again.

Where sessions need more memory than there is, admitting one evicts another, which then has to be
computed again. Done at will that is thrash: every request evicts what the next one wants. Not done
at all the others starve. So it is rationed: a part of all work done is paid into a purse, and an
admission that pushes something out waits until the purse is not in debt, and pays what is likely
lost. Work that was lost beyond what has been paid for is charged when it shows, up to a bound: what
is gone does not come back by keeping those out who wait. What is earned beyond all debt is kept
while nobody waits, up to a bound: whoever comes to a quiet engine starts at once, and a quiet hour
buys the beginning of a storm and no more.

    work done --share--> purse --expected loss--> admission
                           '------ thrash beyond what was paid for

Of those that are not resident the one that came first has the turn: whatever the order of the
queue, the purse is for it, and while it waits the others do. The share grows with its wait: short
waits cost no throughput, and long ones are kept from growing.

Where many run already, there is a second bound: one more makes every step a little cheaper for all,
by less the more there are. An admission that pushes out more than its seat is worth waits until
fewer run; so the number of running requests follows what concurrency is worth, not what fits.

Nobody starves: the purse fills with any work at all, and while nothing runs it is not asked. Knows
operations and requests; no pool and no time of day.

Source: a token bucket whose rate is a share of the engine's own work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import Match
from twinpool.scheduling.admission import Admission
from twinpool.scheduling.counters import Counters
from twinpool.scheduling.known_match import known_match
from twinpool.scheduling.request import Request
from twinpool.scheduling.work_clock import STEP_WEIGHT, WorkClock

# Part of the work done that may be lost to rotation: few sessions at a time are swapped. From the
# first to the second while the one whose turn it is waits as long as it takes to compute all of
# the memory so many times.
LEAST_SHARE = 0.15
MOST_SHARE = 0.5
PATIENCE = 2.0
# The deepest debt, in the same measure: by what admissions pay, and how deep a charge alone goes. A
# storm, as in the first minutes when nothing is known of what returns, is paid for, but not for
# long: half of the memory would lie with those who wait and may not start.
MAX_DEBT = 0.1
MAX_CHARGED_DEBT = 0.03
# The most that is kept beyond all debt, in the same measure. Source: of generated chats that fit,
# the 99th percentile of TTFT is 2.7 s without, 1.2 s with .01, 0.4 s with this, 0.3 s with .1.
MAX_CREDIT = 0.03
# A loss below this part of what a request has to compute itself is not worth a wait.
FREE_PART = 0.02
# A request that finds this part of its prompt or more goes on with a session that is resident.
RESIDENT_PART = 0.75
# So many may run whatever they push out: with fewer, a third of a decode step or more is what it
# costs by itself.
CROWD = 48
# Tokens of an answer, until some have been given.
PRIOR_OUTPUT = 256.0


class Rotation:
    """The purse, and who has to ask it.

    Args:
        clock: Counts the work done.
        cache: Knows what was evicted and wanted again.
        admission: Says what an admission would push out.
        counters: Know how long answers are.
    """

    def __init__(
        self, clock: WorkClock, cache: PrefixCache, admission: Admission, counters: Counters
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._admission = admission
        self._counters = counters
        # The work of computing all that the memory holds.
        self._memory_work = cache.rows.capacity * clock.work.flops_per_row
        self._turn: Request | None = None
        self._waited = 0
        self._purse = 0.0
        self._expected = 0.0
        self._heard_work = self._heard_thrash = 0
        self._is_closed = False
        self._loss = 0.0
        # Who had the turn and was turned away, and how things stood: until they change the answer
        # stays.
        self._refused: tuple[int, tuple[int, int], bool, int] | None = None

    def begin(self, queue: Iterable[Request], num_running: int) -> None:
        """Begin to look through the queue: find whose turn it is, and whether it may start.

        Args:
            queue: The requests that may be asked for; what they matched last is known.
            num_running: How many requests run.
        """
        first: Request | None = None
        for request in queue:
            is_earlier = first is None or request.number < first.number
            if is_earlier and not self._is_resident(request, request.known_match):
                first = request
        self._turn, self._waited, self._is_closed, self._loss = first, 0, False, 0.0
        if first is not None:
            self._waited = self._clock.now - first.arrived_at
            if num_running:
                match = known_match(first, self._cache)
                self._is_closed = not self.allows(first, match, num_running)

    def allows(self, request: Request, match: Match, num_running: int) -> bool:
        """Say whether a request may start though it may push out what will be wanted again.

        While the one whose turn it is has to wait, all others wait as well, unless they go on with
        a session that is resident.

        Args:
            request: A waiting request.
            match: What its tokens match now.
            num_running: How many run beside it.
        """
        self._loss = 0.0
        if self._is_resident(request, match):
            return True
        has_turn, is_in_debt = request is self._turn, self._purse < 0
        versions = (self._cache.version, self._cache.demand.version)
        state = (request.number, versions, is_in_debt, num_running)
        if (self._is_closed and not has_turn) or self._refused == state:
            return False
        free = FREE_PART * self._clock.work.saved(match.depth, request.num_tokens)
        most = math.inf if has_turn and not is_in_debt else free
        most = min(most, self._seat_worth(num_running))
        loss = self._admission.expected_loss(request, match, most)
        if loss > most:
            if has_turn:
                self._refused = state
            else:
                self._is_closed = True
            return False
        self._loss = loss if loss > free else 0.0
        return True

    def _is_resident(self, request: Request, match: Match | None) -> bool:
        depth = 0 if match is None else match.depth
        work = self._clock.work
        left = work.saved(depth, request.num_tokens)
        return left <= (1 - RESIDENT_PART) * work.saved(0, request.num_tokens)

    def _seat_worth(self, num_running: int) -> float:
        """Return the operations that one more running request spares all of them together."""
        if num_running < CROWD:
            return math.inf
        steps = self._counters.mean_output(PRIOR_OUTPUT)
        return steps * STEP_WEIGHT * self._clock.work.flops_per_row / num_running

    def pay(self) -> None:
        """Pay for the request that was allowed last: it starts.

        Where nothing runs nobody asks, and what starts costs nothing.

        Changes:
            The purse.
        """
        self._purse -= self._loss
        self._expected += self._loss

    def note_step(self, num_waiting: int) -> None:
        """Earn a share of the work done since the last call, and pay for what was lost.

        Args:
            num_waiting: How many requests wait; while there are any, nothing is earned beyond all
                debt.

        Changes:
            The purse.
        """
        most = max(0.0, self._purse) if num_waiting else MAX_CREDIT * self._memory_work
        work = self._clock.now - self._heard_work
        thrashed = self._cache.evictor.thrashed_work - self._heard_thrash
        self._heard_work, self._heard_thrash = self._clock.now, self._cache.evictor.thrashed_work
        covered = min(float(thrashed), self._expected)
        self._expected -= covered
        purse = self._purse + self._share() * work
        charged = max(purse - (thrashed - covered), -MAX_CHARGED_DEBT * self._memory_work)
        purse = max(min(purse, charged), -MAX_DEBT * self._memory_work)
        self._purse = min(most, purse)
        # Whoever waits is found again with the next look at the queue, if there is one.
        self._waited = 0

    def _share(self) -> float:
        """Return the part of the work that is paid in now."""
        patience = min(1.0, self._waited / (PATIENCE * self._memory_work))
        return LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * patience
