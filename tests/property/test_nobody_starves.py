"""Least work first under adversaries: whatever keeps arriving, every request is admitted in time.

The bound is in work, not in seconds: a request that has work `w` left goes before any newcomer once
`w / AGEING` has been done since it came.
"""

from __future__ import annotations

import random

import pytest

from simulation import Rig, make_rig
from twinpool.memory.arena import Arena
from twinpool.scheduling.least_work import AGEING
from twinpool.scheduling.rotation import LEAST_SHARE


def clock(rig: Rig) -> int:
    return rig.scheduler._clock.now


def waits(rig: Rig, victim: int, arrive, max_work: int) -> int:
    """Step until the victim has run, feeding the adversary; returns the work it waited for."""
    began = clock(rig)
    while victim in rig.scheduler._roster.waiting.by_id:
        arrive()
        rig.step(audit=False)
        assert clock(rig) - began <= max_work, "it waits for ever"
    return clock(rig) - began


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["small", "resident", "mixed"])
def test_a_large_request_is_admitted_whatever_keeps_coming(kind: str, seed: int) -> None:
    rnd = random.Random(seed)
    rig = make_rig(
        policy="value", order="least-work", arena=Arena(60, 10), chunk_tokens=64, max_running=4
    )
    resident = [rnd.randint(0, 9) for _ in range(60)]
    if kind != "small":
        rig.one(resident, 2)
    largest = 0

    def arrive() -> None:
        nonlocal largest
        if rig.scheduler.num_waiting > 12:
            return
        is_small = kind == "small" or (kind == "mixed" and rnd.random() < 0.5)
        base = [] if is_small else resident
        prompt = base + [rnd.randint(10, 99) for _ in range(rnd.randint(1, 6))]
        largest = max(largest, len(prompt) + 8)
        rig.add(prompt, rnd.randint(1, 8))

    for _ in range(20):
        arrive()
    victim = rig.add([rnd.randint(100, 999) for _ in range(300)], 2)
    # Its discount reaches its work, then those before it and what its room costs are worked off.
    queue = 40 * largest * 24
    waited = waits(rig, victim, arrive, int((300 / AGEING + queue) + 600 / LEAST_SHARE))
    assert waited > 0
