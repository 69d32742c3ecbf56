"""Runs of the scheduler without a model: a scripted executor that checks what it is told to do.

The state of a slot is modelled as the tuple of tokens that it stands for, the content of a row as
the token prefix that wrote it: a wrong copy, a stale row or a slot read before it was written
shows up as an assertion in the test that runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from twinpool.memory.arena import Arena
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.node import NO_SLOT
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import snapshot_rules
from twinpool.memory.work import NEUTRAL
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.events import Arrival, Progress
from twinpool.scheduling.limits import Limits
from twinpool.scheduling.order import queue_order
from twinpool.scheduling.plan import (
    CopyState,
    Lane,
    LaneResult,
    MoveRows,
    StepPlan,
    StepResult,
    ZeroState,
)
from twinpool.scheduling.sampling import SamplingParams
from twinpool.scheduling.scheduler import Scheduler
from twinpool.scheduling.work_clock import WorkClock

Choose = Callable[[np.ndarray, int], int]


def prefix_digest(previous: int, start: int, tokens: np.ndarray) -> np.ndarray:
    """Digest of every prefix that extends one of digest `previous` and length `start`."""
    places = np.arange(start, start + len(tokens), dtype=np.uint64)
    mixed = tokens.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + places
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return np.cumsum(mixed.view(np.int64)) + np.int64(previous)


def next_token(tokens: np.ndarray, request_id: int) -> int:
    """Choose a token from the history alone, as a greedy model would."""
    return int((int(tokens[-1]) * 31 + len(tokens) * 7) % 97)


@dataclass
class CheckingExecutor:
    """Executes plans on digests instead of tensors and checks every read."""

    num_rows: int
    num_slots: int
    choose: Choose = next_token
    # In an arena a slot is so many rows: whoever writes the one destroys the other.
    rows_per_slot: int | None = None
    errors: Callable[[int], str] = lambda request_id: ""
    forgotten: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = np.full(self.num_rows, -1, dtype=np.int64)
        self._marks = np.zeros(self.num_rows, dtype=np.int32)
        self.slots = np.full(self.num_slots, -1, dtype=np.int64)
        self.depths = np.full(self.num_slots, -1, dtype=np.int64)

    def execute(self, plan: StepPlan) -> StepResult:
        for action in plan.actions:
            if isinstance(action, MoveRows):
                self._write_rows(action.targets, self.rows[action.sources])
                self.rows[action.sources] = -1
            elif isinstance(action, ZeroState):
                self._destroy_rows(action.slot)
                self.slots[action.slot], self.depths[action.slot] = 0, 0
            elif isinstance(action, CopyState):
                assert self.depths[action.source] > 0
                self._destroy_rows(action.target)
                self.slots[action.target] = self.slots[action.source]
                self.depths[action.target] = self.depths[action.source]
        working = [lane.slot for lane in plan.lanes if lane.slot != NO_SLOT]
        assert len(set(working)) == len(working)
        targets = [write.slot for lane in plan.lanes for write in lane.checkpoints]
        assert len(set(targets)) == len(targets)
        assert not set(targets) & set(working)
        new_rows = np.concatenate([lane.rows[lane.start : lane.end] for lane in plan.lanes])
        assert self._are_distinct(new_rows), "a row is written for two lanes"
        results = [self._lane(lane) for lane in plan.lanes]
        return StepResult(plan.step, tuple(results), duration_s=0.0)

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)

    def _are_distinct(self, rows: np.ndarray) -> bool:
        places = np.arange(len(rows), dtype=np.int32)
        self._marks[rows] = places
        return bool((self._marks[rows] == places).all())

    def _lane(self, lane: Lane) -> LaneResult:
        # Without linear layers there is no state: the last row stands for what came before.
        before = int(self.rows[lane.rows[lane.start - 1]]) if lane.start else 0
        has_state = lane.slot != NO_SLOT
        state = int(self.slots[lane.slot]) if has_state else before
        if has_state:
            stands_at = self.depths[lane.slot]
            assert stands_at == lane.start, "the state does not stand where the lane starts"
            assert before == state, "row and state differ"
        digests = prefix_digest(state, lane.start, lane.tokens[lane.start : lane.end])
        self._write_rows(lane.rows[lane.start : lane.end], digests)
        assert len(lane.rows) == lane.end
        assert self._are_distinct(lane.rows), "a row stands for two positions"
        for write in lane.checkpoints:
            assert lane.start < write.depth <= lane.end
            self._destroy_rows(write.slot)
            self.slots[write.slot] = digests[write.depth - lane.start - 1]
            self.depths[write.slot] = write.depth
        if has_state:
            self.slots[lane.slot] = digests[-1]
            self.depths[lane.slot] = lane.end
        error = self.errors(lane.request_id)
        if error:
            return LaneResult(lane.request_id, None, error=error)
        if lane.sampling is None:
            return LaneResult(lane.request_id, None)
        return LaneResult(lane.request_id, self.choose(lane.tokens, lane.request_id))

    def _write_rows(self, rows: np.ndarray, digests: np.ndarray) -> None:
        self.rows[rows] = digests
        if self.rows_per_slot is not None:
            self.slots[rows // self.rows_per_slot] = self.depths[rows // self.rows_per_slot] = -1

    def _destroy_rows(self, slot: int) -> None:
        if self.rows_per_slot is not None:
            self.rows[slot * self.rows_per_slot : (slot + 1) * self.rows_per_slot] = -1

    def check_history(self, lane: Lane) -> None:
        """Check every row of a lane against its tokens, slowly."""
        expected = prefix_digest(0, 0, lane.tokens[: lane.end])
        assert (self.rows[lane.rows] == expected).all()


@dataclass
class Rig:
    """A scheduler, its checking executor and a log."""

    scheduler: Scheduler
    executor: CheckingExecutor
    lines: list[bytes]
    next_id: int = 0
    outputs: dict[int, list[int]] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    ended: dict[int, Progress] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)

    def add(self, prompt: Iterable[int], max_tokens: int = 4, **fields) -> int:
        request_id = self.next_id
        self.next_id += 1
        sampling = fields.pop("sampling", None) or SamplingParams(
            max_tokens=max_tokens, temperature=0.0
        )
        self.scheduler.add(
            Arrival(
                request_id=request_id,
                prompt=np.array(list(prompt), dtype=np.int32),
                sampling=sampling,
                **fields,
            )
        )
        self.outputs[request_id] = []
        self.computed[request_id] = 0
        return request_id

    def step(self, *, audit: bool = True, deep: bool = False) -> StepPlan | None:
        plan = self.scheduler.schedule(0.0)
        if plan is None:
            return None
        result = self.executor.execute(plan)
        if deep:
            for lane in plan.lanes:
                self.executor.check_history(lane)
        for lane in plan.lanes:
            self.computed[lane.request_id] += lane.end - lane.start
        for event in self.scheduler.commit(result, 0.0):
            if event.token is not None:
                self.outputs[event.request_id].append(event.token)
            self.cached[event.request_id] = event.cached_tokens
            if event.finish_reason is not None:
                self.ended[event.request_id] = event
        if audit:
            self.scheduler.audit()
        return plan

    def run(self, *, max_steps: int = 100_000, audit: bool = True, deep: bool = False) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step(audit=audit, deep=deep)
        raise AssertionError(f"not done after {max_steps} steps")

    def one(self, prompt: Iterable[int], max_tokens: int = 4, **fields) -> int:
        request_id = self.add(prompt, max_tokens, **fields)
        self.run()
        return request_id


def make_rig(
    *,
    num_rows: int = 4096,
    num_slots: int = 64,
    strategy: str = "direct",
    policy: str = "joint-lru",
    order: str = "fcfs",
    chunk_tokens: int = 512,
    max_running: int | None = None,
    page_size: int = 1,
    per_path: int = -1,
    is_enabled: bool = True,
    needs_state: bool = True,
    track_interval: int = 256,
    chunk_grid: int = 64,
    context_length: int = 1_000_000,
    choose: Choose = next_token,
    budget: OneBudget | None = None,
    arena: Arena | None = None,
    as_reference: bool = False,
    is_due: Callable[[int], bool] | None = None,
) -> Rig:
    """Build a scheduler over small pools with a checking executor."""
    rules = snapshot_rules(
        strategy,
        is_cache_enabled=is_enabled,
        page_size=page_size,
        track_interval=track_interval,
        chunk_grid=chunk_grid,
    )
    cache = PrefixCache(
        num_rows=num_rows,
        num_slots=num_slots,
        policy=eviction_policy(policy, keeps_dead=as_reference),
        page_size=page_size,
        max_states_per_path=per_path,
        needs_state=needs_state,
        is_enabled=is_enabled,
        budget=budget,
        arena=arena,
    )
    if arena is not None:
        num_rows, num_slots = arena.rows.capacity + arena.rows_per_slot, arena.slots.capacity
    clock = WorkClock(NEUTRAL)
    cap = max(1, num_slots // rules.slots_per_request)
    lines: list[bytes] = []
    scheduler = Scheduler(
        cache=cache,
        rules=rules,
        order=queue_order(order, clock, as_reference=as_reference),
        clock=clock,
        limits=Limits(
            max_running_requests=min(cap, max_running or cap),
            chunk_tokens=chunk_tokens,
            context_length=context_length,
        ),
        log=DecisionLog(lines.append),
        is_due=is_due,
    )
    executor = CheckingExecutor(num_rows + page_size, num_slots + 1, choose=choose)
    executor.rows_per_slot = None if arena is None else arena.rows_per_slot
    return Rig(scheduler, executor, lines)
