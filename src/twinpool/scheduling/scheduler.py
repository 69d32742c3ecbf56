"""The scheduler: decides, step by step, what runs, where its memory is and what is left behind.

The same object serves live traffic and replays; it imports neither torch, nor a clock, nor a
socket, and decides the same for the same calls. It carries nothing out: plans go to an executor,
results come back through `commit`.
"""

from __future__ import annotations

from collections.abc import Callable

from twinpool.errors import CapacityError, ConfigError, InvariantError
from twinpool.memory.audit import audit
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import SnapshotRules
from twinpool.scheduling.admission import Admission, require_possible
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.events import Arrival, FinishReason, Progress, Snapshot
from twinpool.scheduling.known_match import audit_matches, forget_match, known_match
from twinpool.scheduling.limits import Limits
from twinpool.scheduling.order import QueueOrder
from twinpool.scheduling.packing import Packing, StepDraft
from twinpool.scheduling.placing import Placing
from twinpool.scheduling.plan import MemoryAction, StepPlan, StepResult
from twinpool.scheduling.queue_pass import QueuePass
from twinpool.scheduling.residency import Residency
from twinpool.scheduling.roster import Roster
from twinpool.scheduling.rotation import Rotation
from twinpool.scheduling.settling import Settling
from twinpool.scheduling.work_clock import WorkClock


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
        self._clock = clock
        self._placing = placing = Placing(cache, rules)
        self._residency = residency = Residency(cache, rules, placing)
        if cache.slots.capacity < residency.min_slots:
            raise CapacityError(
                f"one request needs {residency.min_slots} state slots, and the pool holds "
                f"{cache.slots.capacity}",
                hint="raise --max-mamba-cache-size or --mamba-full-memory-ratio",
            )
        self._roster = roster = Roster(clock, log or DecisionLog())
        self._admission = admission = Admission(cache, residency, limits)
        self._rotation = (
            Rotation(clock, cache, admission, roster.counters) if order.is_sparing else None
        )
        self._packing = Packing(roster, residency, placing, admission, is_due)
        self._queue_pass = QueuePass(
            roster=roster,
            residency=residency,
            packing=self._packing,
            admission=admission,
            order=order,
            rotation=self._rotation,
            limits=limits,
        )
        self._settling = Settling(cache, residency, roster.counters, roster.log, clock)
        self._num_steps = 0
        self._in_flight: StepPlan | None = None
        # Actions of a plan that came to nothing, for the next one.
        self._carried: list[MemoryAction] = []

    @property
    def has_work(self) -> bool:
        """True while a request runs or waits."""
        return bool(self._roster.running or self._roster.waiting)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._roster.waiting)

    @property
    def running_ids(self) -> tuple[int, ...]:
        """Ids of the running requests, in order of admission."""
        return tuple(self._roster.running)

    @property
    def num_steps(self) -> int:
        """Steps planned since start: the number of the next one."""
        return self._num_steps

    @property
    def num_retractions(self) -> int:
        """Requests sent back to the queue since start."""
        return self._roster.counters.retractions

    def add(self, arrival: Arrival) -> None:
        """Put a request into the queue.

        Raises:
            ConfigError: If the prompt is empty or the id is in use.
            CapacityError: If it could never fit: the context or the KV pool is too small.
        """
        if arrival.request_id in self._roster:
            raise ConfigError(f"request id {arrival.request_id} is in use", hint="use a new one")
        require_possible(
            arrival,
            context_length=self.limits.context_length,
            page_size=self.cache.page_size,
            max_rows=self._residency.max_rows,
        )
        request = self._roster.arrive(arrival)
        # Who wants logprobs of the prompt reuses nothing, and so demands nothing.
        if self.cache.demand.is_heeded and not request.wants_prompt_logprobs:
            match = known_match(request, self.cache)
            self.cache.note_demand(arrival.namespace, request.tokens, match)
        for other in self._roster.running.values():
            self._admission.ask(request, other)
        self._roster.log.add("arrive", arrival.request_id, len(arrival.prompt))

    def abort(self, request_id: int) -> bool:
        """Drop a request at once, wherever it is; what the tree owns already stays.

        Must not be called between `schedule` and `commit`.

        Returns:
            False when there is no such request.
        """
        self._require_settled()
        request = self._roster.waiting.pop(request_id)
        if request is None:
            request = self._roster.running.pop(request_id, None)
            if request is None:
                return False
            self._residency.leave(request)
        forget_match(request, self.cache)
        self._roster.counters.finish(FinishReason.ABORT)
        self._roster.log.add("abort", request_id)
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
        roster, packing = self._roster, self._packing
        roster.begin_step(now)
        draft = StepDraft(self.limits.chunk_tokens, self._carried)
        self._carried = []
        retractions = roster.counters.retractions
        packing.add_decodes(draft)
        packing.add_chunks(draft)
        if roster.counters.retractions == retractions:
            self._queue_pass.run(draft)
        if not draft.lanes:
            if self.has_work and not packing.num_held_back:
                raise InvariantError(
                    "requests wait and nothing can run",
                    ledger={"waiting": len(roster.waiting), "running": len(roster.running)},
                )
            # Memory has been given new places already: the next plan puts its content there.
            self._carried = draft.actions
            return None
        packing.add_moves(draft)
        roster.log.add_lanes(draft.lanes)
        self._in_flight = StepPlan(self._num_steps, tuple(draft.actions), tuple(draft.lanes))
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
        running = self._roster.running
        progress = []
        for lane, lane_result in zip(plan.lanes, result.lanes, strict=True):
            event = self._settling.settle(running[lane.request_id], lane, lane_result)
            if event is None:
                continue
            progress.append(event)
            if event.finish_reason is not None:
                del running[lane.request_id]
        self._admission.note_step()
        if self._rotation is not None:
            self._rotation.note_step(len(self._roster.waiting))
        self._roster.log.add_evictions(self.cache.evictor.drain())
        self._roster.log.write(plan.step)
        return progress

    def snapshot(self) -> Snapshot:
        """Return counts of the scheduler and both pools."""
        running = self._roster.running
        working_slots = sum(len(request.slots) for request in running.values())
        if self._in_flight is not None:
            # Slots that the step in flight writes belong to the tree only once it is committed.
            working_slots += sum(
                write.slot not in running[lane.request_id].tracked
                for lane in self._in_flight.lanes
                for write in lane.checkpoints
            )
        return self._roster.counters.snapshot(
            self.cache,
            working_rows=sum(len(request.own_rows) for request in running.values()),
            working_slots=working_slots,
            num_running=len(running),
            num_waiting=len(self._roster.waiting),
            max_running_requests=self.limits.max_running_requests,
            num_steps=self._num_steps,
            skipped_checkpoints=self._placing.skipped_checkpoints,
            waiting_s=self._roster.longest_wait_s,
        )

    def audit(self) -> None:
        """Check that each row and slot has one owner and all books agree, those of the queue too.

        Raises:
            InvariantError: If they do not, or a step is in flight.
        """
        self._require_settled()
        self._roster.waiting.audit()
        audit_matches(self._roster.waiting.by_id.values(), self.cache)
        audit(self.cache, self._roster.holdings())

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
