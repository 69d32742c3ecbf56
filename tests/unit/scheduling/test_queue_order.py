"""Queue order: by arrival, or by what is cached; nobody is passed over without end."""

from __future__ import annotations

import numpy as np
import pytest

from simulation import Rig, make_rig
from twinpool.errors import ConfigError
from twinpool.memory.work import NEUTRAL
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE
from twinpool.scheduling.order import MAX_PASSED, queue_order
from twinpool.scheduling.work_clock import WorkClock


def admitted(rig: Rig) -> list[int]:
    """Run to the end and return the order in which requests were first planned."""
    order: list[int] = []
    while rig.scheduler.has_work:
        plan = rig.step()
        order += [lane.request_id for lane in plan.lanes if lane.request_id not in order]
    return order


def test_fcfs_admits_by_arrival():
    rig = make_rig(max_running=1)
    rig.one(range(100))
    ids = [rig.add([9] * 50), rig.add(range(90)), rig.add([8] * 10)]
    assert admitted(rig) == ids


def test_lpm_admits_the_longest_match_first_and_equals_by_arrival():
    rig = make_rig(order="lpm", max_running=1, chunk_tokens=4096)
    rig.one(range(100), boundaries=(40,))
    first, half, whole, other = (
        rig.add([9] * 50),
        rig.add([*range(50), 7]),
        rig.add(range(100)),
        rig.add([8] * 50),
    )
    assert admitted(rig) == [whole, half, first, other]


def test_lpm_bounds_how_often_a_request_is_passed_over():
    rig = make_rig(order="lpm", max_running=1, num_rows=20_000)
    rig.one(range(100))
    loser = rig.add([9] * 50, max_tokens=1)
    passed = 0
    for _ in range(3 * MAX_PASSED):
        # There is always one that matches better.
        rig.add(range(100), max_tokens=1)
        plan = rig.step()
        if plan.lanes[0].request_id == loser:
            break
        passed += 1
    else:
        pytest.fail("passed over for ever")
    assert passed == MAX_PASSED


def test_lpm_goes_by_arrival_when_matching_the_queue_would_cost_more_than_it_gains():
    rig = make_rig(order="lpm", max_running=1, num_rows=20_000)
    rig.one(range(100))
    ids = [rig.add([9, number], max_tokens=1) for number in range(MAX_MATCHED_QUEUE)]
    rig.add(range(100))
    assert rig.step().lanes[0].request_id == ids[0]


def test_a_retracted_request_keeps_its_place():
    rig = make_rig(num_rows=160, max_running=4)
    ids = [rig.add([number] * 20, max_tokens=70) for number in (1, 2, 3)]
    rig.run()
    assert rig.scheduler.snapshot().retractions > 0
    assert list(rig.ended) == ids


def test_unknown_orders_are_refused_by_name():
    with pytest.raises(ConfigError, match="sjf") as error:
        queue_order("sjf", WorkClock(NEUTRAL))
    assert all(name in error.value.hint for name in ("fcfs", "lpm", "least-work"))


def test_matches_are_looked_up_once_per_state_of_the_tree(monkeypatch):
    rig = make_rig(max_running=1, order="lpm")
    rig.one(range(100))
    rig.add(range(100), max_tokens=30)
    rig.step()
    for number in range(10):
        rig.add([number] * 50)
    cache = rig.scheduler.cache
    calls: list[int] = []
    match = cache.match

    def counted(namespace: str, tokens: np.ndarray):
        calls.append(len(tokens))
        return match(namespace, tokens)

    monkeypatch.setattr(cache, "match", counted)
    version = cache.version
    while cache.version == version:
        rig.step()
    assert len(calls) <= 10
