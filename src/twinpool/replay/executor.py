"""The executor on the virtual clock: answers from the trace, durations from the cost model.

Carries nothing out: it says what a step gives and how long it would take. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Callable

from twinpool.replay.cost import Span, StepCost
from twinpool.replay.flight import Flight
from twinpool.scheduling.plan import LaneResult, StepPlan, StepResult


class VirtualExecutor:
    """Predicts steps; see `scheduling.executor.Executor`.

    Args:
        cost: Says how long a step takes.
        flight: Returns a request in flight by its id.
        decoding: Returns how many requests decode now, and the tokens before their next ones.
    """

    def __init__(
        self,
        cost: StepCost,
        flight: Callable[[int], Flight],
        decoding: Callable[[], tuple[int, int]],
    ) -> None:
        self._cost = cost
        self._flight = flight
        self._decoding = decoding
        self.prefill_tokens = 0

    def execute(self, plan: StepPlan) -> StepResult:
        """Predict a step: the prompts' parts, and one token for every request that decodes.

        Changes:
            `prefill_tokens`, by the tokens of prompts that the step computes.
        """
        spans = []
        results = []
        for lane in plan.lanes:
            flight = self._flight(lane.request_id)
            if not self._is_decode(flight, lane.start):
                start, length = flight.tokens_of(lane.start, lane.end)
                spans.append(Span(start, length))
                self.prefill_tokens += length
            if lane.sampling is None:
                results.append(LaneResult(lane.request_id, None))
                continue
            # The answer may have ended before it had to: then the trace says where.
            ends_here = flight.is_last and flight.ticket.is_stopped
            stop = "recorded end" if ends_here else None
            results.append(LaneResult(lane.request_id, flight.next_key(), stop_string=stop))
        num_requests, context_tokens = self._decoding()
        seconds = self._cost.prefill_s(spans) + self._cost.decode_s(num_requests, context_tokens)
        return StepResult(plan.step, tuple(results), duration_s=seconds)

    def forget(self, request_id: int) -> None:
        """Keep nothing, so forget nothing."""

    @staticmethod
    def _is_decode(flight: Flight, start: int) -> bool:
        return flight.is_decoding and start >= len(flight.ticket.prompt)
