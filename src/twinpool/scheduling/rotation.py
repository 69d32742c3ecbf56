"""Rotation: how much of the work may go into pushing out what will be wanted again.

Where sessions need more memory than there is, admitting one evicts another, which then has to be
computed again. Done at will that is thrash: every request evicts what the next one wants. Not done
at all the others starve. So it is rationed: a part of all work done is paid into a purse, and an
admission that pushes something out waits until the purse is not in debt, and pays what is likely
lost. Work that was lost beyond what has been paid for is charged when it shows.

    work done --share--> purse --expected loss--> admission
                           '------ thrash beyond what was paid for

Nobody starves: the purse fills with any work at all, and while nothing runs it is not asked. Knows
operations; no request, no pool and no time of day.

Source: a token bucket whose rate is a share of the engine's own work.
"""

from __future__ import annotations

import math

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree import Match
from twinpool.scheduling.admission import Admission
from twinpool.scheduling.request import Request
from twinpool.scheduling.work_clock import WorkClock

# Part of the work done that may be lost to rotation: few sessions at a time are swapped.
SHARE = 0.3
# A loss below this part of what a request has to compute itself is not worth a wait.
FREE_PART = 0.02
# A request that finds this part of its prompt or more goes on with a session that is resident.
RESIDENT_PART = 0.75


class Rotation:
    """The purse, and who has to ask it.

    Args:
        clock: Counts the work done.
        cache: Knows what was evicted and wanted again.
        admission: Says what an admission would push out.
        share: Part of the work done that may be lost, above 0.
    """

    def __init__(
        self, clock: WorkClock, cache: PrefixCache, admission: Admission, share: float = SHARE
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._admission = admission
        self._share = share
        self._purse = 0.0
        self._expected = 0.0
        self._heard_work = self._heard_thrash = 0
        self._is_closed = False
        self._loss = 0.0
        # Who was turned away at which state of the tree: until it changes the answer stays.
        self._refused = (-1, -1)

    def begin(self) -> None:
        """Begin to look through the queue: nobody has been turned away yet."""
        self._is_closed = False

    def allows(self, request: Request, match: Match) -> bool:
        """Say whether a request may start though it may push out what will be wanted again.

        Once one had to wait, those behind it in the queue wait as well, unless they go on with a
        session that is resident.

        Args:
            request: A waiting request.
            match: What its tokens match now.
        """
        self._loss = 0.0
        work = self._clock.work
        left = work.saved(match.depth, request.num_tokens)
        if left <= (1 - RESIDENT_PART) * work.saved(0, request.num_tokens):
            return True
        is_in_debt = self._purse < 0
        state = (request.number, self._cache.version)
        if self._is_closed or (is_in_debt and self._refused == state):
            self._is_closed = True
            return False
        free = FREE_PART * left
        loss = self._admission.expected_loss(request, match, free if is_in_debt else math.inf)
        if loss > free and is_in_debt:
            self._is_closed = True
            self._refused = state
            return False
        self._loss = loss if loss > free else 0.0
        return True

    def pay(self) -> None:
        """Pay for the request that was allowed last: it starts.

        Changes:
            The purse.
        """
        self._purse -= self._loss
        self._expected += self._loss

    def note_step(self) -> None:
        """Earn a share of the work done since the last call, and pay for what was lost.

        Changes:
            The purse; what is earned beyond all debt is not kept: a quiet hour buys no storm.
        """
        work = self._clock.now - self._heard_work
        thrashed = self._cache.thrashed_work - self._heard_thrash
        self._heard_work, self._heard_thrash = self._clock.now, self._cache.thrashed_work
        covered = min(float(thrashed), self._expected)
        self._expected -= covered
        self._purse = min(0.0, self._purse + self._share * work - (thrashed - covered))
