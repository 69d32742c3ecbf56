"""The driver: the live scheduler on a virtual clock, from the first request to the last.

Steps between events are advanced at once: while nothing but decodes runs, time jumps to where the
next block of an answer is full or the next request arrives. Decides nothing: order, admission,
eviction and checkpoints are the scheduler's.

    load --tickets--> scheduler --plan--> cost model --seconds--> clock
      ^                   ^------------------ commit -------------'
      '------ done -------'
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from twinpool.clock import VirtualClock
from twinpool.errors import CapacityError
from twinpool.replay.cost import StepCost
from twinpool.replay.executor import VirtualExecutor
from twinpool.replay.flight import Flight
from twinpool.replay.load import Load
from twinpool.replay.records import ServedRequest
from twinpool.replay.units import Ticket
from twinpool.scheduling.events import Arrival, Progress
from twinpool.scheduling.plan import StepPlan
from twinpool.scheduling.sampling import SamplingParams
from twinpool.scheduling.scheduler import Scheduler

# What arrives within this of the end of a step has arrived: sums of floats differ by less.
_TIE_S = 1e-9


@dataclass(slots=True)
class Tally:
    """What a replay counts as it goes.

    Attributes:
        served: Requests that ended, in the order of their ends.
        refused: Requests that could never fit, with the reason.
        busy_s: Virtual seconds in which a step ran.
        prefill_tokens: Prompt tokens computed, repeats after retractions included.
        unfinished: Requests that the end of time cut short; they end there. Those that were not
            admitted have a negative time of admission.
        longest_queue: Most requests that waited at once.
    """

    served: list[ServedRequest] = field(default_factory=list)
    refused: list[tuple[Ticket, str]] = field(default_factory=list)
    busy_s: float = 0.0
    prefill_tokens: int = 0
    unfinished: list[ServedRequest] = field(default_factory=list)
    longest_queue: int = 0

    @property
    def cut_short(self) -> list[ServedRequest]:
        """Those of `unfinished` that had been admitted."""
        return [request for request in self.unfinished if request.admitted_s >= 0]


class Driver:
    """Runs a load through a scheduler in virtual time.

    Args:
        make_scheduler: Builds the scheduler; gets the function that says which decodes are due.
        load: Says when requests are sent.
        cost: Says how long steps take.
        duration_s: Virtual time after which nothing is sent any more and the run ends; None: when
            all is served.
        watch: Called with the driver after every step and jump, for samples over time.
        audit: True to check the books after every step (slow).
    """

    # Tokens that decodes may write in one jump; the twin that steps through them sets it to 1.
    max_jump_tokens = 1 << 40

    def __init__(
        self,
        make_scheduler: Callable[[Callable[[int], bool]], Scheduler],
        load: Load,
        cost: StepCost,
        *,
        duration_s: float | None = None,
        watch: Callable[[Driver], None] | None = None,
        audit: bool = False,
    ) -> None:
        self.clock = VirtualClock()
        self.scheduler = make_scheduler(self._is_due)
        self.tally = Tally()
        self._load = load
        self._cost = cost
        self._end_s = math.inf if duration_s is None else duration_s
        self._watch = watch
        self._audit = audit
        self._flights: dict[int, Flight] = {}
        # Requests that have their first token and run, in the order in which they got it.
        self._decoding: dict[int, Flight] = {}
        self._new: list[Flight] = []
        self._num_sent = 0
        self._num_retractions = 0
        self._executor = VirtualExecutor(cost, self._flights.__getitem__, self._decoding_load)

    def new_flights(self) -> list[Flight]:
        """Return the requests that were sent since the last call, and forget them."""
        sent, self._new = self._new, []
        return sent

    def is_running(self, flight: Flight) -> bool:
        """True while a request runs or waits."""
        return flight.index in self._flights

    def run(self) -> Tally:
        """Run to the end.

        Returns:
            What was counted; requests that the end of time cut short are not in it.
        """
        while self.clock.now() < self._end_s:
            self._admit_arrivals()
            plan = self.scheduler.schedule(self.clock.now())
            self._note_retractions()
            if plan is not None:
                self._note_admissions(plan)
                result = self._executor.execute(plan)
                self._pass(result.duration_s)
                self._write_tokens(1)
                for event in self.scheduler.commit(result, self.clock.now()):
                    self._hear(event)
                if self._audit:
                    self.scheduler.audit()
            elif self._decoding:
                self._jump()
            elif not self._wait_for_arrival():
                break
            if self._watch is not None:
                self._watch(self)
        now = self.clock.now()
        for flight in self._flights.values():
            if flight.first_token_s < 0:
                flight.first_token_s = now
            self.tally.unfinished.append(flight.served(now))
        self.tally.prefill_tokens = self._executor.prefill_tokens
        return self.tally

    def _admit_arrivals(self) -> None:
        """Send everything that is due by now."""
        now = self.clock.now()
        while (when := self._next_s()) is not None and when <= now + _TIE_S and when < self._end_s:
            ticket = self._load.take()
            arrival_s = min(when, now) if when > -math.inf else now
            flight = Flight(self._num_sent, ticket, arrival_s)
            self._num_sent += 1
            try:
                self.scheduler.add(_arrival(flight))
            except CapacityError as error:
                self.tally.refused.append((ticket, error.message))
                self._load.done(ticket, now)
                continue
            self._flights[flight.index] = flight
            if self._watch is not None:
                self._new.append(flight)
        self.tally.longest_queue = max(self.tally.longest_queue, self.scheduler.num_waiting)

    def _next_s(self) -> float | None:
        has_work = self.scheduler.has_work
        return self._load.next_s(self.scheduler.num_steps if has_work else None)

    def _hear(self, event: Progress) -> None:
        flight = self._flights[event.request_id]
        flight.note_sampled()
        now = self.clock.now()
        if flight.first_token_s < 0:
            flight.first_token_s = now
            flight.cached_tokens = _tokens(flight, event.cached_tokens)
            flight.missed_tokens = _tokens(flight, event.missed_tokens)
        if event.finish_reason is None:
            self._decoding[event.request_id] = flight
            flight.is_decoding = True
            return
        del self._flights[event.request_id]
        self._decoding.pop(event.request_id, None)
        self.tally.served.append(flight.served(now))
        self._load.done(flight.ticket, now)

    def _note_admissions(self, plan: StepPlan) -> None:
        for lane in plan.lanes:
            flight = self._flights[lane.request_id]
            flight.is_running = True
            if flight.admitted_s < 0:
                flight.admitted_s = self.clock.now()

    def _jump(self) -> None:
        """Let all decodes write until the token before a unit is full, or a request arrives."""
        step_s = self._cost.decode_s(*self._decoding_load())
        tokens = min(flight.due_at - flight.num_written for flight in self._decoding.values()) - 1
        when = self._next_s()
        if when is not None and when < self._end_s:
            tokens = min(tokens, math.ceil((when - self.clock.now() - _TIE_S) / step_s))
        # A unit that is full by the next token is planned, not jumped over.
        tokens = min(max(tokens, 1), self.max_jump_tokens)
        self._pass(tokens * step_s)
        self._write_tokens(tokens)

    def _write_tokens(self, count: int) -> None:
        for flight in self._decoding.values():
            flight.num_written = min(flight.num_written + count, flight.ticket.output_tokens - 1)

    def _wait_for_arrival(self) -> bool:
        """Stand still until the next request; False when there is none to come."""
        when = self._next_s()
        if when is None or when >= self._end_s:
            return False
        self.clock.advance_to(max(when, self.clock.now()))
        return True

    def _pass(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now() + seconds)
        self.tally.busy_s += seconds

    def _note_retractions(self) -> None:
        """Take those out of the decoding ones that the scheduler has sent back to the queue."""
        if self.scheduler.num_retractions == self._num_retractions:
            return
        self._num_retractions = self.scheduler.num_retractions
        running = set(self.scheduler.running_ids)
        for number, flight in self._flights.items():
            if flight.is_running and number not in running:
                flight.is_running = flight.is_decoding = False
                flight.retractions += 1
                self._decoding.pop(number, None)

    def _decoding_load(self) -> tuple[int, int]:
        return len(self._decoding), sum(map(_context, self._decoding.values()))

    def _is_due(self, request_id: int) -> bool:
        """True when the next token fills the unit that a request is writing."""
        flight = self._decoding.get(request_id)
        return flight is None or flight.due_at - flight.num_written <= 1


def _tokens(flight: Flight, units: int) -> int:
    return min(units * flight.ticket.unit_tokens, flight.ticket.input_tokens)


def _context(flight: Flight) -> int:
    return flight.context_tokens


def _arrival(flight: Flight) -> Arrival:
    ticket = flight.ticket
    return Arrival(
        request_id=flight.index,
        prompt=ticket.prompt,
        sampling=SamplingParams(max_tokens=ticket.max_units, temperature=0.0, ignore_eos=True),
        namespace=ticket.namespace,
        boundaries=tuple(depth for depth in ticket.boundaries if depth < len(ticket.prompt)),
        num_whole=ticket.num_whole,
    )
