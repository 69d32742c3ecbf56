"""Admission: whether a waiting request may start now, with both pools in the budget.

Knows the pools' counters, the running requests and a candidate; it takes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import AnswerReserve
from twinpool.memory.tree_records import Match
from twinpool.scheduling.events import Arrival
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

    def promised(self, running: Sequence[Request]) -> int:
        """Return the rows that running requests will take beyond those that they hold."""
        if self._residency.rules.reserve is AnswerReserve.NOTHING:
            return 0
        # What a running request holds and has not filled yet serves its own growth first.
        return sum(
            max(0, other.num_tokens + self._growth(other) - other.num_rows) for other in running
        )

    def fits(self, request: Request, match: Match, num_running: int, promised: int) -> bool:
        """True when a request can start and the running ones can go on.

        Args:
            request: A waiting request.
            match: What its tokens match now.
            num_running: How many requests run.
            promised: Rows that they will take, from `promised`.

        Source: under the reference engine's strategies its `PrefillAdder`: the candidate's answer
        counts whole and with a page on top, and so do running ones that cannot end early. Ours
        differs where nothing runs: then what fits at all may start.
        """
        if num_running >= self.max_running_requests or not self._residency.can_enter(match):
            return False
        page = self._cache.page_size
        needed = -(-(request.num_tokens - match.depth) // page) * page
        # Locking the match takes its rows out of what can be evicted, and its state, too.
        available = self._cache.room.rows_beside(self._residency.num_entry_slots(match))
        available -= match.num_unlocked_rows
        if not num_running or self._residency.rules.reserve is AnswerReserve.NOTHING:
            return needed <= available
        if self._residency.rules.reserve is AnswerReserve.WHOLE:
            whole = min(request.remaining_output, self._max_expected)
            return needed + whole + page + promised < available
        return needed + self._growth(request) + promised <= available

    def expected_loss(self, request: Request, match: Match, limit: float = math.inf) -> float:
        """Return the work that admitting a request would likely push out and have done again.

        Args:
            request: A waiting request.
            match: What its tokens match now.
            limit: Beyond this much the exact loss does not matter.
        """
        rows = request.num_tokens - match.depth + self._growth(request)
        # Its own state and the checkpoint at its prompt's end.
        slots = self._residency.num_entry_slots(match) + 1 if self._cache.needs_state else 0
        return self._cache.foresight.expected_loss(rows, slots, spared=match.node, limit=limit)

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


def require_possible(
    arrival: Arrival, *, context_length: int, page_size: int, max_rows: int
) -> None:
    """Refuse what could never run, however long it waits.

    Args:
        arrival: What arrived.
        context_length: Tokens of one request at most.
        page_size: Rows of a page.
        max_rows: Rows that one request could have.

    Raises:
        ConfigError: If the prompt is empty.
        CapacityError: If the context or the memory is too small.
    """
    if not len(arrival.prompt):
        raise ConfigError("the prompt is empty", hint="send at least one token")
    total = len(arrival.prompt) + arrival.sampling.max_tokens
    if total > context_length:
        raise CapacityError(
            f"{len(arrival.prompt)} prompt tokens and {arrival.sampling.max_tokens} output "
            f"tokens are {total}, and the context holds {context_length}",
            hint="shorten the prompt or lower max_tokens",
        )
    # The last sampled token never needs a row.
    if -(-(total - 1) // page_size) * page_size > max_rows:
        raise CapacityError(
            f"a request of {total} tokens needs more than the {max_rows} rows that the KV pool "
            "has for one",
            hint="lower max_tokens, or give the KV pool more memory",
        )
