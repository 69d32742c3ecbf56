"""The scheduler: decides, step by step, what runs, where its memory is and what is left behind.

The same object serves live traffic and replays; it imports neither torch, nor a clock, nor a
socket, and decides the same for the same calls. It carries nothing out: plans go to an executor,
results come back through `commit`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from twinpool.errors import CapacityError, ConfigError, InvariantError, OutOfRows
from twinpool.memory.audit import Holdings, audit
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import SnapshotRules
from twinpool.memory.tree_records import Match
from twinpool.scheduling.admission import Admission, require_possible
from twinpool.scheduling.counters import Counters
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.events import Arrival, FinishReason, Progress, Snapshot
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE, forget_match, known_match
from twinpool.scheduling.limits import Limits
from twinpool.scheduling.order import QueueOrder
from twinpool.scheduling.plan import (
    Lane,
    MemoryAction,
    MoveRows,
    StepPlan,
    StepResult,
)
from twinpool.scheduling.request import Request
from twinpool.scheduling.residency import Residency
from twinpool.scheduling.rotation import Rotation
from twinpool.scheduling.settling import Settling
from twinpool.scheduling.work_clock import WorkClock

# So many requests that wait for another's prefill are passed over in one step: a long queue of
# them must not be searched to its end every time.
MAX_AWAITING = 64


class Scheduler:
    """Continuous batching with chunked prefill over two pools.

    Args:
        cache: Both pools and the tree.
        rules: What the slot strategy takes and leaves.
        order: Which waiting request is looked at first.
        limits: Bounds of a step and of a request.
        clock: Counts what is computed; the order may age requests by it.
        log: Where decisions are written.
        is_due: Says of a decoding request, by its id, whether it takes part in the next step;
            None: always. A replay whose tokens stand for whole blocks holds decodes back until
            their block is full.

    Raises:
        ConfigError: If a chunk is not whole pages.
        CapacityError: If the state pool is too small for a single request.
    """

    def __init__(
        self,
        *,
        cache: PrefixCache,
        rules: SnapshotRules,
        order: QueueOrder,
        limits: Limits,
        clock: WorkClock,
        log: DecisionLog | None = None,
        is_due: Callable[[int], bool] | None = None,
    ) -> None:
        if limits.chunk_tokens % cache.page_size:
            raise ConfigError(
                f"chunks of {limits.chunk_tokens} tokens are not whole pages of {cache.page_size}",
                hint="change --chunked-prefill-size or --page-size",
            )
        self.cache = cache
        self.limits = limits
        self._order = order
        self._clock = clock
        self._log = log or DecisionLog()
        self._is_due = is_due
        self._residency = Residency(cache, rules)
        if cache.slots.capacity < self._residency.min_slots:
            raise CapacityError(
                f"one request needs {self._residency.min_slots} state slots, and the pool holds "
                f"{cache.slots.capacity}",
                hint="raise --max-mamba-cache-size or --mamba-full-memory-ratio",
            )
        self._admission = Admission(cache, self._residency, limits)
        self._waiting: dict[int, Request] = {}
        # In order of admission: the youngest is last.
        self._running: dict[int, Request] = {}
        self._counters = Counters()
        self._rotation = (
            Rotation(clock, cache, self._admission, self._counters) if order.is_sparing else None
        )
        self._settling = Settling(cache, self._residency, self._counters, self._log, clock)
        self._num_arrived = 0
        self._num_steps = 0
        # Those that no step has seen yet: their waits begin with the next one.
        self._new: list[Request] = []
        self._now_s = 0.0
        self._num_held_back = 0
        self._in_flight: StepPlan | None = None
        # Actions of a plan that came to nothing, for the next one.
        self._carried: list[MemoryAction] = []

    @property
    def has_work(self) -> bool:
        """True while a request runs or waits."""
        return bool(self._running or self._waiting)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running_ids(self) -> tuple[int, ...]:
        """Ids of the running requests, in order of admission."""
        return tuple(self._running)

    @property
    def num_steps(self) -> int:
        """Steps planned since start: the number of the next one."""
        return self._num_steps

    @property
    def num_retractions(self) -> int:
        """Requests sent back to the queue since start."""
        return self._counters.retractions

    def add(self, arrival: Arrival) -> None:
        """Put a request into the queue.

        Raises:
            ConfigError: If the prompt is empty or the id is in use.
            CapacityError: If it could never fit: the context or the KV pool is too small.
        """
        if arrival.request_id in self._running or arrival.request_id in self._waiting:
            raise ConfigError(f"request id {arrival.request_id} is in use", hint="use a new one")
        require_possible(
            arrival,
            context_length=self.limits.context_length,
            page_size=self.cache.page_size,
            max_rows=self._residency.max_rows,
        )
        request = Request(arrival, self._num_arrived)
        request.arrived_at = self._clock.now
        # Until a step has seen it, it came at the last one: no snapshot before may show a wait.
        request.seen_s = self._now_s
        self._waiting[arrival.request_id] = request
        self._new.append(request)
        self._num_arrived += 1
        # Who wants logprobs of the prompt reuses nothing, and so demands nothing.
        if self.cache.demand.is_heeded and not request.wants_prompt_logprobs:
            match = known_match(request, self.cache)
            self.cache.note_demand(arrival.namespace, request.tokens, match)
        for other in self._running.values():
            self._admission.ask(request, other)
        self._log.add("arrive", arrival.request_id, len(arrival.prompt))

    def abort(self, request_id: int) -> bool:
        """Drop a request at once, wherever it is; what the tree owns already stays.

        Must not be called between `schedule` and `commit`.

        Returns:
            False when there is no such request.
        """
        self._require_settled()
        request = self._waiting.pop(request_id, None)
        if request is None:
            request = self._running.pop(request_id, None)
            if request is None:
                return False
            self._residency.leave(request)
        forget_match(request, self.cache)
        self._counters.finish(FinishReason.ABORT)
        self._log.add("abort", request_id)
        return True

    def flush(self) -> bool:
        """Drop all cached prefixes that no running request uses.

        Returns:
            True when nothing is cached any more.
        """
        self._require_settled()
        return self.cache.flush()

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step.

        Args:
            now: The time in seconds; orders that age requests use it.

        Returns:
            The plan, or None when nothing can run or all that runs is held back. Every plan must be
            answered by `commit`.

        Raises:
            InvariantError: If the last plan has not been committed, or requests wait and nothing
                runs though everything could be evicted.
        """
        self._require_settled()
        self._now_s = now
        for request in self._new:
            request.seen_s = now
        self._new.clear()
        actions, self._carried = self._carried, []
        retractions = self._counters.retractions
        lanes = self._decode_lanes()
        budget = self.limits.chunk_tokens
        budget -= self._prefill_lanes(lanes, budget)
        if self._counters.retractions == retractions:
            self._admit(lanes, actions, budget)
        if not lanes:
            if self.has_work and not self._num_held_back:
                raise InvariantError(
                    "requests wait and nothing can run",
                    ledger={"waiting": len(self._waiting), "running": len(self._running)},
                )
            # Memory has been given new places already: the next plan puts its content there.
            self._carried = actions
            return None
        self._add_moves(actions)
        self._log_lanes(lanes)
        self._in_flight = StepPlan(self._num_steps, tuple(actions), tuple(lanes))
        self._num_steps += 1
        return self._in_flight

    def commit(self, result: StepResult, now: float) -> list[Progress]:
        """Take the result of the last plan: append tokens, settle memory, end requests.

        Args:
            result: One result per lane of the last plan, in its order.
            now: The time in seconds.

        Returns:
            What happened to each request that got a token or ended.

        Raises:
            InvariantError: If the result does not answer the last plan.
        """
        plan = self._in_flight
        if plan is None or not _answers(result, plan):
            raise InvariantError("a result does not answer the last plan")
        self._in_flight = None
        progress = []
        for lane, lane_result in zip(plan.lanes, result.lanes, strict=True):
            event = self._settling.settle(self._running[lane.request_id], lane, lane_result)
            if event is None:
                continue
            progress.append(event)
            if event.finish_reason is not None:
                del self._running[lane.request_id]
        self._admission.note_step()
        if self._rotation is not None:
            self._rotation.note_step()
        self._log.add_evictions(self.cache.evictor.drain())
        self._log.write(plan.step)
        return progress

    def snapshot(self) -> Snapshot:
        """Return counts of the scheduler and both pools."""
        working_rows = sum(len(request.own_rows) for request in self._running.values())
        working_slots = sum(len(request.slots) for request in self._running.values())
        if self._in_flight is not None:
            # Slots that the step in flight writes belong to the tree only once it is committed.
            working_slots += sum(
                write.slot not in self._running[lane.request_id].tracked
                for lane in self._in_flight.lanes
                for write in lane.checkpoints
            )
        since_s = min((r.seen_s for r in self._waiting.values()), default=self._now_s)
        return self._counters.snapshot(
            self.cache,
            working_rows=working_rows,
            working_slots=working_slots,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            max_running_requests=self.limits.max_running_requests,
            num_steps=self._num_steps,
            skipped_checkpoints=self._residency.skipped_checkpoints,
            waiting_s=self._now_s - since_s,
        )

    def audit(self) -> None:
        """Check that every row and slot has one owner and all books agree. See `memory.audit`.

        Raises:
            InvariantError: If they do not, or a step is in flight.
        """
        self._require_settled()
        running = list(self._running.values())
        audit(
            self.cache,
            Holdings(
                rows=[request.own_rows for request in running],
                holders=[request.number for request in running],
                slots=[slot for request in running for slot in request.slots],
                locked=[request.node for request in running if request.node is not None],
                locked_checkpoints=[r.matched for r in running if r.matched is not None],
                listed=[r.rows[: r.tree_depth] for r in running if r.node is not None],
                wanted=[r.wanted for r in self._waiting.values() if r.wanted is not None],
            ),
        )

    def _decode_lanes(self) -> list[Lane]:
        lanes: list[Lane] = []
        self._num_held_back = 0
        for request in list(self._running.values()):
            # One that came earlier in the loop may have sent it back to the queue.
            request_id = request.request_id
            if self._is_due is not None and not self._is_due(request_id):
                self._num_held_back += 1
                continue
            if request_id not in self._running or not request.is_decoding:
                continue
            if self._make_room(request, request.num_tokens):
                lanes.append(self._lane(request, request.num_tokens))
        return lanes

    def _prefill_lanes(self, lanes: list[Lane], budget: int) -> int:
        used = 0
        for request in list(self._running.values()):
            if request.request_id not in self._running or request.is_decoding:
                continue
            end = self._chunk_end(request, budget - used)
            if end == request.num_computed:
                break
            if not self._make_room(request, end, may_wait=bool(lanes)):
                continue
            used += end - request.num_computed
            lanes.append(self._lane(request, end))
        return used

    def _chunk_end(self, request: Request, budget: int) -> int:
        """Return where the next span of a prefill ends: with its last token, or on a page.

        Every span then begins on a page, and so do the grids that count from it.
        """
        end = request.num_computed + budget
        if end >= request.num_tokens:
            return request.num_tokens
        return max(end // self.cache.page_size * self.cache.page_size, request.num_computed)

    def _make_room(self, request: Request, end: int, *, may_wait: bool = False) -> bool:
        """Hold rows up to `end`, sending the youngest back to the queue while there are none.

        With `may_wait` nobody is sent back: lanes that are planned already keep their memory, and
        the request takes its turn when they have ended.
        """
        while True:
            try:
                self._residency.grow(request, end)
            except OutOfRows:
                if may_wait:
                    return False
                youngest = next(reversed(self._running.values()))
                self._retract(youngest)
                if youngest is request:
                    return False
            else:
                return True

    def _retract(self, request: Request) -> None:
        del self._running[request.request_id]
        self._log.add("retract", request.request_id, request.num_computed)
        if request.wants_prompt_logprobs:
            request.prompt_logprobs.clear()
        self._residency.keep(request)
        request.fill = request.num_tokens
        self._waiting[request.request_id] = request
        if self.cache.demand.is_heeded:
            known_match(request, self.cache)
        self._counters.retractions += 1
        self._admission.note_retraction()

    def _admit(self, lanes: list[Lane], actions: list[MemoryAction], budget: int) -> None:
        if not self._waiting or len(self._running) >= self.limits.max_running_requests:
            return
        # Those that still compute their prompt are few; looked up once, not for each in the queue.
        num_awaiting = 0
        rotation = self._rotation
        promised = self._admission.promised(list(self._running.values()))
        prefilling = [each for each in self._running.values() if each.num_computed < each.fill]
        admits_down_to = self.limits.chunk_tokens - (self.limits.admit_tokens or 0)
        queue = self._order.sort(list(self._waiting.values()), self.cache)
        if rotation:
            # Where the head waits for room its followers are looked at, too, but not without end.
            queue = queue[:MAX_MATCHED_QUEUE]
            rotation.begin(queue, len(self._running))
        for request in queue:
            if budget < self.cache.page_size or budget <= admits_down_to:
                return
            match = known_match(request, self.cache)
            if self._admission.awaited(request, match, prefilling):
                num_awaiting += 1
                if num_awaiting == MAX_AWAITING:
                    return
                continue
            num_running = len(self._running)
            if rotation and num_running and not rotation.allows(request, match, num_running):
                continue
            if not self._admission.fits(request, match, num_running, promised):
                return
            if rotation:
                rotation.pay()
            actions += self._start(request, match)
            prefilling.append(request)
            end = self._chunk_end(request, budget)
            if self._make_room(request, end, may_wait=bool(lanes)):
                budget -= end - request.num_computed
                lanes.append(self._lane(request, end))
            promised = self._admission.promised(list(self._running.values()))

    def _start(self, request: Request, match: Match) -> list[MemoryAction]:
        """Let a waiting request run; returns the actions that make its memory ready."""
        del self._waiting[request.request_id]
        for other in self._waiting.values():
            other.num_passed += other.number < request.number
        actions: list[MemoryAction] = []
        entered = self._residency.enter(request, match)
        self._add_moves(actions)
        actions += entered
        forget_match(request, self.cache)
        self._running[request.request_id] = request
        self._note_admission(request, match.kv_depth)
        # Those that will share this prefill say so before its first chunk is planned.
        for other in islice(self._waiting.values(), MAX_MATCHED_QUEUE):
            self._admission.ask(other, request)
        return actions

    def _add_moves(self, actions: list[MemoryAction]) -> None:
        """Plan the copies of rows that were moved so far, before what is planned from now on."""
        for moves in self.cache.room.drain_moves():
            actions.append(MoveRows(moves.sources, moves.targets))
            self._log.add("move", len(moves.sources))

    def _note_admission(self, request: Request, kv_depth: int) -> None:
        depth = request.num_computed
        self._log.add("admit", request.request_id, depth, kv_depth, request.slot)
        if request.num_admissions == 0:
            request.cached_tokens = min(depth, request.num_prompt)
            self._counters.prompt_tokens += request.num_prompt
            self._counters.cached_tokens += request.cached_tokens
            request.missed_tokens = kv_depth - depth
            self._counters.note_wait(self._now_s - request.seen_s)
            self._counters.state_missed_tokens += request.missed_tokens
        request.num_admissions += 1

    def _lane(self, request: Request, end: int) -> Lane:
        skipped = self._residency.skipped_checkpoints
        writes = self._residency.checkpoint_writes(request, end)
        if self._residency.skipped_checkpoints > skipped:
            self._log.add("skipped", request.request_id)
        request.planned_end = end
        return Lane(
            request_id=request.request_id,
            start=request.num_computed,
            end=end,
            tokens=request.tokens,
            num_prompt=request.num_prompt,
            rows=request.rows[:end],
            slot=request.slot,
            checkpoints=writes,
            sampling=request.arrival.sampling if end == request.num_tokens else None,
            output_index=request.num_output,
            prompt_logprobs=request.num_prompt_logprobs,
        )

    def _log_lanes(self, lanes: list[Lane]) -> None:
        """Note what is planned, once it is known where all rows are."""
        if not self._log.is_on:
            return
        for lane in lanes:
            depths = [write.depth for write in lane.checkpoints]
            row = int(lane.rows[lane.start])
            self._log.add("lanes", lane.request_id, lane.start, lane.end, lane.slot, row, depths)

    def _require_settled(self) -> None:
        if self._in_flight is not None:
            raise InvariantError("the last plan has not been committed")


def _answers(result: StepResult, plan: StepPlan) -> bool:
    """Say whether a result has one entry per lane, and a token where one was to be sampled."""
    if result.step != plan.step or len(result.lanes) != len(plan.lanes):
        return False
    return all(
        got.request_id == lane.request_id
        and (got.error != "" or (got.token is None) == (lane.sampling is None))
        for got, lane in zip(result.lanes, plan.lanes, strict=True)
    )
