"""Workloads against bytes: what running requests and retained sessions need of both pools.

Two questions: how many requests of one length can run at once when both pools are cut for it, and
whether sessions that come back turn after turn find their KV and a checkpoint. Exact integers
throughout; knows no trace and no time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.sizing import Budget, PoolSizes, split_pinned
from twinpool.spec.geometry import Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sessions that return turn after turn.

    Attributes:
        sessions: Sessions that are to stay resident, those that are running included.
        session_context: Tokens of one of them, prompt and answers so far, at its longest.
        running: Requests that run at once at the peak.
        checkpoints_per_session: Checkpoints kept for each session that is not running.
        margin_slots: Slots beyond that; None: see `default_margin`.
    """

    sessions: int
    session_context: int
    running: int
    checkpoints_per_session: int = 1
    margin_slots: int | None = None

    def __post_init__(self) -> None:
        for name, count, low in (
            ("--sessions", self.sessions, 1),
            ("--session-context", self.session_context, 1),
            ("--running", self.running, 1),
            ("--checkpoints-per-session", self.checkpoints_per_session, 1),
            ("--margin-slots", 0 if self.margin_slots is None else self.margin_slots, 0),
        ):
            if not isinstance(count, int) or isinstance(count, bool):
                raise ConfigError(f"{name} is {count!r}, not a whole number")
            if count < low:
                raise ConfigError(f"{name} is {count}", hint=f"use {low} or more")

    @property
    def idle_sessions(self) -> int:
        """Sessions that are not running at the peak; a running one is counted once, as running."""
        return max(self.sessions - self.running, 0)

    @property
    def kv_tokens(self) -> int:
        """Rows that all sessions hold; requests beyond the sessions are as long as one."""
        return max(self.sessions, self.running) * self.session_context

    def default_margin(self, slots_per_request: int) -> int:
        """Slots to spare, so that a turn that begins does not push out a checkpoint of another.

        A strategy that reserves several slots per request has room for the request's own
        checkpoint among them: then the slots of one request are enough for a change of shift. With
        one slot per request every running request takes one more for the end of its prompt.
        """
        return slots_per_request if slots_per_request > 1 else self.running + 1

    def slots(self, slots_per_request: int) -> int:
        """Smallest number of state slots: running states, idle checkpoints and the margin."""
        margin = self.margin_slots
        if margin is None:
            margin = self.default_margin(slots_per_request)
        idle = self.idle_sessions * self.checkpoints_per_session
        return slots_per_request * self.running + idle + margin


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """What a workload needs and what the bytes give.

    Attributes:
        workload: The sessions.
        state_slots: Smallest number of slots that holds running states and checkpoints.
        margin_slots: The part of them that is margin.
        kv_tokens_needed: Rows that the sessions hold.
        sizes: Pools with exactly those slots; None when the slots alone take more than there is.
        max_sessions: Sessions of that context that the bytes hold at the best split; those that
            run are counted in.
        host_bytes: Backup outside the device that holds the sessions beyond `max_sessions`.
    """

    workload: Workload
    state_slots: int
    margin_slots: int
    kv_tokens_needed: int
    sizes: PoolSizes | None
    max_sessions: int
    host_bytes: int

    @property
    def kv_tokens(self) -> int:
        """Rows that the slots leave."""
        return self.sizes.kv_tokens if self.sizes else 0

    @property
    def spare_tokens(self) -> int:
        """Rows left over once the sessions are in; negative: rows that are missing."""
        return self.kv_tokens - self.kv_tokens_needed

    @property
    def fits(self) -> bool:
        """True when every session finds its KV and its checkpoint."""
        return self.sizes is not None and self.spare_tokens >= 0


def plan_workload(geometry: Geometry, budget: Budget, workload: Workload) -> WorkloadPlan:
    """Say what a workload needs of both pools, and whether the bytes hold it.

    Args:
        geometry: Bytes of a row and a slot.
        budget: What both pools are cut from.
        workload: The sessions.

    A model with one kind of memory alone needs nothing of the other.
    """
    slots = workload.slots(budget.slots_per_request) if geometry.slot_bytes else 0
    margin = workload.margin_slots
    if margin is None:
        margin = workload.default_margin(budget.slots_per_request)
    try:
        sizes = split_pinned(geometry, budget, slots)
    except CapacityError:
        sizes = None
    holds = _max_sessions(geometry, budget, workload)
    outside = max(workload.sessions - holds, 0)
    per_session = (
        workload.session_context * geometry.row_bytes
        + workload.checkpoints_per_session * geometry.slot_bytes
    )
    return WorkloadPlan(
        workload=workload,
        state_slots=slots,
        margin_slots=margin if geometry.slot_bytes else 0,
        kv_tokens_needed=workload.kv_tokens if geometry.row_bytes else 0,
        sizes=sizes,
        max_sessions=holds,
        host_bytes=outside * per_session,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyPlan:
    """The most requests of one length that can run at once.

    Attributes:
        average_context: Tokens per request, prompt and answer.
        running: Requests that fit; 0 when not even one does.
        sizes: Pools cut for them; None when not even one fits.
    """

    average_context: int
    running: int
    sizes: PoolSizes | None


def plan_concurrency(geometry: Geometry, budget: Budget, average_context: int) -> ConcurrencyPlan:
    """Find the split at which the most requests of one length run at once.

    Args:
        geometry: Bytes of a row and a slot.
        budget: What both pools are cut from; its bound on running requests counts, too.
        average_context: Tokens per request, prompt and answer, 1 or more.

    Raises:
        ConfigError: If the average context is below 1 or the model writes no rows.
    """
    if average_context < 1:
        raise ConfigError(f"--average-context is {average_context}", hint="use 1 or more")

    def pools(running: int) -> PoolSizes | None:
        asked = replace(budget, max_running_requests=running)
        try:
            sizes = split_pinned(geometry, asked, running * budget.slots_per_request)
        except CapacityError:
            return None
        return sizes if sizes.kv_tokens >= running * average_context else None

    low, high = 0, _most_requests(geometry, budget, average_context)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pools(middle) else (low, middle - 1)
    return ConcurrencyPlan(
        average_context=average_context, running=low, sizes=pools(low) if low else None
    )


def _most_requests(geometry: Geometry, budget: Budget, context: int) -> int:
    """Bound the requests from above: bytes for their rows and slots, and what was asked."""
    slots = budget.slots_per_request + budget.draft_tokens
    bound = budget.rest_bytes // (slots * geometry.slot_bytes + context * geometry.row_bytes)
    asked = budget.max_running_requests
    return bound if asked is None else min(bound, asked)


def _max_sessions(geometry: Geometry, budget: Budget, workload: Workload) -> int:
    """Find the most sessions of that context that fit, with the same running requests."""
    per_session = workload.session_context * geometry.row_bytes or geometry.slot_bytes
    low, high = 0, budget.rest_bytes // per_session
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if _holds(geometry, budget, workload, middle)
            else (
                low,
                middle - 1,
            )
        )
    return low


def _holds(geometry: Geometry, budget: Budget, workload: Workload, sessions: int) -> bool:
    """True when that many sessions fit; of fewer sessions than run, all of them run."""
    running = min(workload.running, sessions)
    fewer = replace(workload, sessions=sessions, running=running)
    try:
        sizes = split_pinned(geometry, budget, fewer.slots(budget.slots_per_request))
    except CapacityError:
        return False
    return not geometry.row_bytes or sizes.kv_tokens >= fewer.kv_tokens
