"""Settling: what the result of a step does to the requests in it.

Appends tokens, moves memory through residency, ends requests and says what happened. Knows one
request at a time; neither the queue nor who else runs.
"""

from __future__ import annotations

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.scheduling.counters import Counters
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.ending import finish_of
from twinpool.scheduling.events import FinishReason, Progress
from twinpool.scheduling.plan import CheckpointWrite, Lane, LaneResult
from twinpool.scheduling.request import Request
from twinpool.scheduling.residency import Residency
from twinpool.scheduling.work_clock import WorkClock


class Settling:
    """Takes results.

    Args:
        cache: The pools.
        residency: Moves what requests hold.
        counters: Counts since start.
        log: Where decisions are written.
        clock: Counts what is computed.
    """

    def __init__(
        self,
        cache: PrefixCache,
        residency: Residency,
        counters: Counters,
        log: DecisionLog,
        clock: WorkClock,
    ) -> None:
        self._cache = cache
        self._residency = residency
        self._counters = counters
        self._log = log
        self._clock = clock

    def settle(self, request: Request, lane: Lane, result: LaneResult) -> Progress | None:
        """Take the result of one lane.

        Args:
            request: The lane's request.
            lane: What was planned.
            result: What came of it.

        Returns:
            What happened, None while its prompt is computed; it has ended where a reason is given,
            and holds nothing then.

        Changes:
            The request, the tree, the pools, counters and clock.
        """
        self._counters.computed_tokens += lane.end - lane.start
        if lane.start < request.fill:
            self._clock.pass_prefill(lane.start, lane.end)
        else:
            self._clock.pass_decode(lane.end - lane.start)
        if result.error:
            self._drop_writes(lane.checkpoints, request)
            return self._end_with_error(request, result.error)
        self._residency.settle(
            request, lane.end, lane.checkpoints, in_decode=lane.start >= request.fill
        )
        request.prompt_logprobs.extend(result.prompt_logprobs)
        if result.token is None:
            return None
        request.append_token(result.token)
        self._counters.output_tokens += 1
        reason, stop_token = finish_of(request, result.token, result.stop_string)
        is_first = request.num_output == 1
        if reason is not None:
            self._log.add("finish", request.request_id, reason.value, request.num_computed)
            self._residency.keep(request)
            self._counters.finish(reason)
        with_prompt = is_first and request.arrival.sampling.prompt_logprobs is not None
        return Progress(
            request_id=request.request_id,
            token=result.token,
            logprobs=result.logprobs,
            prompt_logprobs=tuple(request.prompt_logprobs) if with_prompt else None,
            finish_reason=reason,
            stop_string=result.stop_string if reason is FinishReason.STOP else None,
            stop_token=stop_token,
            cached_tokens=request.cached_tokens,
            missed_tokens=request.missed_tokens,
        )

    def _drop_writes(self, writes: tuple[CheckpointWrite, ...], request: Request) -> None:
        for write in writes:
            if write.slot not in request.tracked:
                self._cache.slots.free(write.slot)

    def _end_with_error(self, request: Request, error: str) -> Progress:
        self._residency.leave(request)
        self._counters.finish(FinishReason.ERROR)
        self._log.add("finish", request.request_id, "error", request.num_computed)
        return Progress(
            request_id=request.request_id,
            finish_reason=FinishReason.ERROR,
            cached_tokens=request.cached_tokens,
            error=error,
        )
