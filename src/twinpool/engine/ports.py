"""What the worker needs of an engine, as protocols: the seam that a test's fake also fits.

Knows neither the scheduler that decides nor the executor that does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twinpool.engine import protocol
from twinpool.engine.recorder import Recorder
from twinpool.scheduling.events import Arrival, Progress, Snapshot
from twinpool.scheduling.executor import Executor
from twinpool.scheduling.plan import StepPlan, StepResult


class StepScheduler(Protocol):
    """What the step loop needs of `scheduling.scheduler.Scheduler`."""

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps planned since start."""
        ...

    def add(self, arrival: Arrival) -> None:
        """Put a request in the queue; raises CapacityError or ConfigError."""
        ...

    def abort(self, request_id: int) -> bool:
        """End a request and free what it holds; False when it is not there."""
        ...

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step; None when nothing can be done now."""
        ...

    def commit(self, result: StepResult, now: float) -> list[Progress]:
        """Take in what a step gave."""
        ...

    def flush(self) -> bool:
        """Drop the prefix cache; False when running requests still hold a part of it."""
        ...

    def snapshot(self) -> Snapshot:
        """Return the pools and counters."""
        ...


class LoadedEngine(Protocol):
    """What `assembly.build_engine` returns."""

    @property
    def scheduler(self) -> StepScheduler:
        """Decides."""
        ...

    @property
    def executor(self) -> Executor:
        """Does."""
        ...

    @property
    def info(self) -> protocol.EngineFacts:
        """What the front is told."""
        ...

    @property
    def recorder(self) -> Recorder | None:
        """Writes a trace of what is asked; None when nobody wants one."""
        ...


ProgressSink = Callable[[protocol.Loading | protocol.Log], None]
Build = Callable[[bytes, ProgressSink], LoadedEngine]
