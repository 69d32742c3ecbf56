"""A replay from its parts: a trace, pools and a cost model in, a summary out.

The scheduler is wired by the same function that wires a server's. Knows no flag and no file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twinpool.replay.cost import StepCost
from twinpool.replay.driver import Driver, Tally
from twinpool.replay.load import ClosedLoad, LaneStart, Load, OpenLoad, StepLoad, Turns
from twinpool.replay.summary import Summary, summarise
from twinpool.replay.timeline import Sample, Timeline
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.events import Snapshot
from twinpool.scheduling.scheduler import Scheduler
from twinpool.settings.resolve import Resolved
from twinpool.settings.wiring import PoolCounts, build_scheduler
from twinpool.traces.schema import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One replay: what is sent, on which memory, by which policies.

    Attributes:
        trace: The workload.
        resolved: Settings: strategy, eviction, order, chunks.
        counts: Both pools and the cap.
        cost: How long steps take.
        turns: How sessions become requests.
        starts: Where lanes begin, for a closed loop; None: an open loop at recorded times.
        by_steps: True to send requests at the scheduler's steps that a server recorded.
        is_endless: True to start over with the first session when lanes have used up all.
        duration_s: Virtual time at which the run ends; None: when all is served.
        samples: Samples over the run, about; 0 for none.
        with_sessions: True to sample what is left of each session, too.
        expected_s: Virtual time that the run takes, for the distance of samples where
            `duration_s` is not given; None: a run without samples finds it out.
    """

    trace: Trace
    resolved: Resolved
    counts: PoolCounts
    cost: StepCost
    turns: Turns
    starts: Sequence[LaneStart] | None = None
    by_steps: bool = False
    is_endless: bool = False
    duration_s: float | None = None
    samples: int = 0
    with_sessions: bool = False
    expected_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a replay.

    Attributes:
        summary: Rates and latencies.
        tally: Every request, and what was refused.
        snapshot: The scheduler and both pools at the end.
        samples: The run over time; empty when none were asked for.
        unit_tokens: Tokens of one unit, in which the snapshot counts rows.
    """

    summary: Summary
    tally: Tally
    snapshot: Snapshot
    samples: tuple[Sample, ...]
    unit_tokens: int


def run_replay(
    setup: Setup, *, decisions: Callable[[bytes], None] | None = None, audit: bool = False
) -> Outcome:
    """Replay a workload in virtual time.

    Args:
        setup: What is to be replayed.
        decisions: Receives each line of the decision log; None: no log.
        audit: True to check the books of both pools after every step (slow).

    Raises:
        ConfigError: If trace, lanes and settings do not go together.
        CapacityError: If the pools are too small for a single request.
    """
    timeline = None
    if setup.samples:
        every_s = _span_s(setup) / setup.samples
        timeline = Timeline(every_s=every_s, with_sessions=setup.with_sessions)

    def make(is_due: Callable[[int], bool]) -> Scheduler:
        return build_scheduler(
            setup.resolved,
            setup.counts,
            DecisionLog(decisions),
            unit_tokens=setup.turns.unit_tokens,
            is_due=is_due,
        )

    driver = Driver(
        make,
        _load(setup),
        setup.cost,
        duration_s=setup.duration_s,
        watch=timeline,
        audit=audit,
    )
    tally = driver.run()
    return Outcome(
        summary=summarise(tally.served, driver.clock.now(), tally.cut_short),
        tally=tally,
        snapshot=driver.scheduler.snapshot(),
        samples=tuple(timeline.samples) if timeline else (),
        unit_tokens=setup.turns.unit_tokens,
    )


def _span_s(setup: Setup) -> float:
    """Return the time over which samples are spread; some time even where nothing happens."""
    span_s = setup.duration_s or setup.expected_s
    if span_s is None:
        span_s = run_replay(dataclasses.replace(setup, samples=0)).summary.duration_s
    return span_s or 1.0


def _load(setup: Setup) -> Load:
    if setup.by_steps:
        return StepLoad(setup.trace, setup.turns)
    if setup.starts is None:
        return OpenLoad(setup.trace, setup.turns)
    return ClosedLoad(setup.trace, setup.turns, setup.starts, is_endless=setup.is_endless)
