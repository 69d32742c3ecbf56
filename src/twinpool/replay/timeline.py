"""The timeline: both pools, the queue and the sessions' residency, sampled as a replay runs.

Looks at the driver from outside, through snapshots and matches that change nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from twinpool.replay.driver import Driver
from twinpool.replay.flight import Flight
from twinpool.scheduling.events import PoolSnapshot

# Of what a session sent last, this part counts as "there".
NEARLY_ALL = 0.9


class Residency(enum.StrEnum):
    """What is left of a session in memory."""

    RUNNING = "running"
    BOTH = "both"
    KV_ONLY = "kv only"
    STATE_ONLY = "state only"
    COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSample:
    """One pool at one moment, as parts of its capacity that add up to 1.

    Attributes:
        free: Owned by nobody.
        evictable: Cached and free to go.
        locked: Cached and in use by a running request.
        working: Owned by running requests.
    """

    free: float
    evictable: float
    locked: float
    working: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The replay at one moment.

    Attributes:
        time_s: Virtual time.
        kv: The KV pool.
        state: The state pool; None for a model without one.
        num_running: Running requests.
        num_waiting: Requests in the queue.
        prompt_tokens: Prompt units admitted since start.
        cached_tokens: The part of them that was reused.
        sessions: What is left of each session that was seen, by name.
    """

    time_s: float
    kv: PoolSample
    state: PoolSample | None
    num_running: int
    num_waiting: int
    prompt_tokens: int
    cached_tokens: int
    sessions: dict[str, Residency]


@dataclass(slots=True)
class Timeline:
    """Samples a driver at even distances in virtual time.

    Attributes:
        every_s: Virtual seconds between samples.
        with_sessions: True to look up what is left of each session, which costs a match for each.
        samples: What was seen, by rising time.
    """

    every_s: float
    with_sessions: bool = False
    samples: list[Sample] = field(default_factory=list)
    _next_s: float = 0.0
    _last: dict[str, Flight] = field(default_factory=dict)

    def __call__(self, driver: Driver) -> None:
        """Take a sample if one is due.

        Args:
            driver: Looked at, not changed.
        """
        if self.with_sessions:
            for flight in driver.new_flights():
                self._last[flight.ticket.session] = flight
        now = driver.clock.now()
        if now < self._next_s:
            return
        self._next_s = (now // self.every_s + 1) * self.every_s
        self.samples.append(self._sample(driver, now))

    def _sample(self, driver: Driver, now: float) -> Sample:
        snapshot = driver.scheduler.snapshot()
        return Sample(
            time_s=now,
            kv=_pool(snapshot.kv),
            state=_pool(snapshot.state) if driver.scheduler.cache.needs_state else None,
            num_running=snapshot.num_running,
            num_waiting=snapshot.num_waiting,
            prompt_tokens=snapshot.prompt_tokens,
            cached_tokens=snapshot.cached_tokens,
            sessions={name: self._residency(driver, f) for name, f in self._last.items()},
        )

    @staticmethod
    def _residency(driver: Driver, flight: Flight) -> Residency:
        if driver.is_running(flight):
            return Residency.RUNNING
        ticket = flight.ticket
        whole = ticket.input_tokens // ticket.unit_tokens
        found = driver.scheduler.cache.match(ticket.namespace, ticket.prompt)
        needed = NEARLY_ALL * max(whole - 1, 1)
        if found.depth >= needed:
            return Residency.BOTH
        return Residency.KV_ONLY if found.kv_depth >= needed else Residency.COLD


def _pool(pool: PoolSnapshot) -> PoolSample:
    total = max(pool.capacity, 1)
    return PoolSample(
        free=pool.free / total,
        evictable=pool.evictable / total,
        locked=(pool.cached - pool.evictable) / total,
        working=pool.working / total,
    )
