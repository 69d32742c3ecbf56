"""The roster: who waits and who runs, and what is counted and written of them.

What the parts of the scheduler share. Holds requests; decides nothing about them and knows no pool.
"""

from __future__ import annotations

from twinpool.memory.audit import Holdings
from twinpool.scheduling.counters import Counters
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.request import Request
from twinpool.scheduling.waiting import Waiting
from twinpool.scheduling.work_clock import WorkClock


class Roster:
    """The requests between their arrival and their end.

    Args:
        clock: Counts what is computed.
        log: Where decisions are written.

    Attributes:
        waiting: Those in the queue.
        running: Those admitted by id, in order of admission: the youngest is last.
        counters: Counts since start.
        log: Where decisions are written.
        now_s: The time of the last step.
    """

    def __init__(self, clock: WorkClock, log: DecisionLog) -> None:
        self.waiting = Waiting()
        self.running: dict[int, Request] = {}
        self.counters = Counters()
        self.log = log
        self.now_s = 0.0
        self._clock = clock
        self._num_arrived = 0
        # Those that no step has seen yet: their waits begin with the next one.
        self._new: list[Request] = []

    def __contains__(self, request_id: int) -> bool:
        return request_id in self.running or request_id in self.waiting.by_id

    def arrive(self, arrival: Arrival) -> Request:
        """Put a new request into the queue; its id must not be in use."""
        request = Request(arrival, self._num_arrived)
        request.arrived_at = self._clock.now
        # Until a step has seen it, it came at the last one: no snapshot before may show a wait.
        request.seen_s = self.now_s
        self._num_arrived += 1
        self._new.append(request)
        self.waiting.add(request)
        return request

    def begin_step(self, now: float) -> None:
        """Hear at what time a step is planned; it never runs backwards."""
        self.now_s = now
        for request in self._new:
            request.seen_s = now
        self._new.clear()

    @property
    def longest_wait_s(self) -> float:
        """How long the one has waited that has waited longest, of those in the queue."""
        oldest = self.waiting.by_arrival.first(1)
        return self.now_s - oldest[0].seen_s if oldest else 0.0

    def holdings(self) -> Holdings:
        """Return what all requests hold outside the tree, for the audit."""
        running = list(self.running.values())
        return Holdings(
            rows=[request.own_rows for request in running],
            holders=[request.number for request in running],
            slots=[slot for request in running for slot in request.slots],
            locked=[request.node for request in running if request.node is not None],
            locked_checkpoints=[r.matched for r in running if r.matched is not None],
            listed=[r.rows[: r.tree_depth] for r in running if r.node is not None],
            wanted=[r.wanted for r in self.waiting.by_id.values() if r.wanted is not None],
        )
