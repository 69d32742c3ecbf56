"""Admission: both pools are budgeted, for the newcomer and for what the running ones will need."""

from __future__ import annotations

import pytest

from simulation import make_rig


def test_rows_that_a_match_would_lock_do_not_count_as_evictable():
    rig = make_rig(num_rows=64)
    rig.one(range(32), max_tokens=1)
    running = rig.add([7] * 16, max_tokens=20)
    rig.step()
    snapshot = rig.scheduler.snapshot()
    assert (snapshot.kv.free, snapshot.kv.evictable) == (16, 32)
    # It would lock the 32 cached rows, and the running one needs the 16 free ones.
    newcomer = rig.add([*range(32), *range(100, 115)], max_tokens=1)
    rig.step()
    assert rig.scheduler.snapshot().num_running == 1
    rig.run()
    assert list(rig.ended)[1:] == [running, newcomer]


@pytest.mark.parametrize(("max_tokens", "is_admitted"), [(10, True), (60, False)])
def test_output_that_running_requests_are_expected_to_need_is_kept_for_them(
    max_tokens, is_admitted
):
    rig = make_rig(num_rows=96)
    rig.add([1] * 16, max_tokens=max_tokens)
    rig.step()
    newcomer = rig.add([2] * 60, max_tokens=1)
    plan = rig.step()
    assert (newcomer in [lane.request_id for lane in plan.lanes]) == is_admitted
    rig.run()


def test_the_first_in_the_queue_is_not_passed_by_a_smaller_one():
    rig = make_rig(num_rows=96)
    rig.add([1] * 40, max_tokens=40)
    rig.step()
    big, small = rig.add([2] * 60, max_tokens=1), rig.add([3] * 2, max_tokens=1)
    rig.step()
    assert rig.scheduler.num_waiting == 2
    rig.run()
    assert list(rig.ended)[1:] == [big, small]


@pytest.mark.parametrize("strategy", ["direct", "extra_buffer", "extra_buffer_lazy", "no_buffer"])
def test_requests_wait_when_slots_run_out_and_all_end(strategy):
    rig = make_rig(strategy=strategy, num_slots=10, num_rows=8192, max_running=64)
    for number in range(30):
        rig.add([number] * 20, max_tokens=5)
    most = 0
    while rig.scheduler.has_work:
        rig.step()
        most = max(most, rig.scheduler.snapshot().num_running)
    assert len(rig.ended) == 30
    assert most <= 10


def test_the_cap_on_running_requests_holds():
    rig = make_rig(max_running=3)
    for number in range(9):
        rig.add([number] * 5, max_tokens=4)
    while rig.scheduler.has_work:
        rig.step()
        assert rig.scheduler.snapshot().num_running <= 3


def test_a_match_inside_a_segment_does_not_block_its_own_request():
    # The whole pool is one cached segment; a prompt that shares a little of it must still start.
    rig = make_rig(num_rows=96, num_slots=0, needs_state=False)
    rig.one(range(96), max_tokens=1)
    again = rig.add([*range(10), *range(200, 280)], max_tokens=1)
    rig.run(deep=True)
    assert rig.cached[again] == 10
