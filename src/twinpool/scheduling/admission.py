"""Admission: whether a waiting request may start now, with both pools in the budget.

Knows the pools' counters, the running requests and a candidate; it takes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import AnswerReserve
from twinpool.memory.tree import Match
from twinpool.scheduling.limits import Limits
from twinpool.scheduling.request import Request
from twinpool.scheduling.residency import Residency

# The expected share of the allowed output: it starts high, sinks step by step, and rises again
# after a retraction. Source: reference engine, new_token_ratio.
INITIAL_SHARE = 0.7
FLOOR_SHARE = 0.1
SHARE_DECAY = (INITIAL_SHARE - FLOOR_SHARE) / 600
# So many checkpoints are left in one prefill for the sake of others.
MAX_ASKED_PLACES = 8


class Admission:
    """Budgets rows and slots.

    Args:
        cache: The pools.
        residency: Knows the slots that a request takes.
        limits: The cap in force, and what short and long are, in the scheduler's unit.
    """

    def __init__(self, cache: PrefixCache, residency: Residency, limits: Limits) -> None:
        self._cache = cache
        self._residency = residency
        self.max_running_requests = limits.max_running_requests
        self._min_awaited = limits.min_awaited_tokens
        self._max_expected = limits.max_expected_tokens
        self._expected_share = INITIAL_SHARE

    def note_step(self) -> None:
        """Lower the expected output a little: nothing had to be retracted."""
        self._expected_share = max(FLOOR_SHARE, self._expected_share - SHARE_DECAY)

    def note_retraction(self) -> None:
        """Expect more output again."""
        self._expected_share = INITIAL_SHARE

    def fits(self, request: Request, match: Match, running: Sequence[Request]) -> bool:
        """True when a request can start and the running ones can go on.

        Args:
            request: A waiting request.
            match: What its tokens match now.
            running: The running requests.

        Source: under the reference engine's strategies its `PrefillAdder`: the candidate's answer
        counts whole and with a page on top, and so do running ones that cannot end early. Ours
        differs where nothing runs: then what fits at all may start.
        """
        if len(running) >= self.max_running_requests or not self._residency.can_enter(match):
            return False
        page = self._cache.page_size
        needed = -(-(request.num_tokens - match.depth) // page) * page
        # Locking the match takes its rows out of what can be evicted, and its state, too.
        available = self._cache.rows_beside(self._residency.num_entry_slots(match))
        available -= match.num_unlocked_rows
        if not running or self._residency.rules.reserve is AnswerReserve.NOTHING:
            return needed <= available
        # What a running request holds and has not filled yet serves its own growth first.
        promised = sum(
            max(0, other.num_tokens + self._growth(other) - other.num_rows) for other in running
        )
        if self._residency.rules.reserve is AnswerReserve.WHOLE:
            whole = min(request.remaining_output, self._max_expected)
            return needed + whole + page + promised < available
        return needed + self._growth(request) + promised <= available

    def awaited(self, request: Request, match: Match, prefilling: Sequence[Request]) -> bool:
        """True when a running prefill will soon leave a much deeper prefix for a request.

        Args:
            request: A waiting request.
            match: What its tokens match now.
            prefilling: The running requests whose prompts are not computed yet.

        Changes:
            As `ask` does.
        """
        worth = match.depth + self._min_awaited
        for other in prefilling:
            shared = self.ask(request, other)
            if any(worth <= depth <= shared for depth in other.places):
                return True
        return False

    def ask(self, request: Request, other: Request) -> int:
        """Ask a running prefill for a checkpoint where a waiting request leaves its path.

        Args:
            request: A waiting request.
            other: A running one.

        Returns:
            The deepest place at which the running prefill can help, 0 when it cannot.

        Changes:
            `other.places`, unless the place is too near to another or there are many.

        Cost:
            One comparison of both prompts.
        """
        if (
            other.num_computed >= other.fill
            or other.arrival.namespace != request.arrival.namespace
            or request.wants_prompt_logprobs
            or not self._residency.rules.heeds_others
        ):
            return 0
        shared = min(_shared(request, other), request.num_tokens - 1)
        shared = shared // self._cache.page_size * self._cache.page_size
        computed = max(other.num_computed, other.planned_end)
        is_known = shared - other.tree_depth < self._min_awaited
        is_near = any(shared - self._min_awaited < depth <= shared for depth in other.places)
        if computed < shared < other.fill and not (is_known or is_near):
            other.ask_for_place(shared, limit=MAX_ASKED_PLACES)
        return shared

    def _growth(self, request: Request) -> int:
        expected = min(request.remaining_output, self._max_expected)
        is_whole = self._residency.rules.reserve is AnswerReserve.WHOLE
        if is_whole and request.arrival.sampling.ignore_eos:
            return expected
        return int(expected * self._expected_share) + 1


def _shared(request: Request, other: Request) -> int:
    """Return how many tokens two requests begin with alike."""
    end = min(request.num_tokens, other.fill)
    if request.tokens[0] != other.tokens[0]:
        return 0
    same = request.tokens[:end] == other.tokens[:end]
    return end if same.all() else int(np.argmin(same))
