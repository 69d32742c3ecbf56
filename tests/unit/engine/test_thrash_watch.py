"""When the log says that work is done again because of evictions."""

from __future__ import annotations

import dataclasses

from simulation import make_rig
from twinpool.engine.thrash_watch import LOOK_STEPS, ThrashWatch
from twinpool.scheduling.events import Snapshot


def snapshot(computed: int, thrashed: int) -> Snapshot:
    empty = make_rig().scheduler.snapshot()
    return dataclasses.replace(
        empty, computed_tokens=computed, thrashed_tokens=thrashed, num_steps=7, num_waiting=3
    )


def test_a_fifth_of_the_work_is_thrash_and_said_with_numbers() -> None:
    line = ThrashWatch().look(snapshot(20_000, 4_000))
    assert "4000 of the last 20000" in line
    assert "3 wait" in line


def test_less_or_too_little_to_judge_is_not_said() -> None:
    assert ThrashWatch().look(snapshot(20_000, 3_999)) == ""
    assert ThrashWatch().look(snapshot(1_000, 1_000)) == ""


def test_each_window_is_judged_by_itself() -> None:
    watch = ThrashWatch()
    assert watch.look(snapshot(20_000, 10_000))
    assert watch.look(snapshot(40_000, 10_000)) == ""
    assert watch.look(snapshot(60_000, 20_000))
    assert watch.next_step == 7 + LOOK_STEPS
