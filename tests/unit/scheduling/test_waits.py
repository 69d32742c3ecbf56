"""The longest wait that a snapshot shows."""

from __future__ import annotations

import numpy as np

from simulation import Rig, make_rig
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.sampling import SamplingParams


def add(rig: Rig, number: int) -> None:
    sampling = SamplingParams(max_tokens=3, temperature=0.0)
    prompt = np.arange(1, 20, dtype=np.int32) + 100 * number
    rig.scheduler.add(Arrival(request_id=number, prompt=prompt, sampling=sampling))


def step(rig: Rig, now: float) -> None:
    plan = rig.scheduler.schedule(now)
    assert plan is not None
    rig.scheduler.commit(rig.executor.execute(plan), now)


def test_who_has_just_come_has_not_waited_however_late_it_is() -> None:
    rig = make_rig()
    add(rig, 0)
    step(rig, 5000.0)
    add(rig, 1)
    assert rig.scheduler.snapshot().longest_wait_s == 0


def test_those_that_wait_count_and_are_not_forgotten() -> None:
    rig = make_rig(max_running=1)
    add(rig, 0)
    add(rig, 1)
    step(rig, 10.0)
    step(rig, 14.0)
    assert rig.scheduler.snapshot().longest_wait_s == 4
    while rig.scheduler.num_waiting:
        step(rig, 17.0)
    add(rig, 2)
    assert rig.scheduler.snapshot().longest_wait_s == 7
