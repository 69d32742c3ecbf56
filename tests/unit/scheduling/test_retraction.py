"""Retraction: the youngest goes back with what it computed, and little is computed twice."""

from __future__ import annotations

import pytest

from simulation import make_rig


def crowded(**fields):
    """Three requests of which two start together and cannot both end in the pool."""
    rig = make_rig(**({"num_rows": 160, "max_running": 4, "num_slots": 16} | fields))
    ids = [rig.add([number] * 20, max_tokens=70) for number in (1, 2, 3)]
    return rig, ids


@pytest.mark.parametrize("policy", ["lru", "joint-lru"])
def test_everything_ends_and_the_oldest_is_never_sent_back(policy):
    rig, ids = crowded(policy=policy)
    rig.run(deep=True)
    assert rig.scheduler.snapshot().retractions > 0
    assert rig.computed[ids[0]] == 89
    assert all(len(rig.outputs[number]) == 70 for number in ids)


def test_with_room_in_the_tree_one_token_is_computed_twice_at_most():
    rig = make_rig(num_rows=400, max_running=4, num_slots=16)
    ids = [rig.add([number] * 30, max_tokens=100) for number in (1, 2, 3)]
    for _ in range(20):
        rig.step()
    scheduler = rig.scheduler
    youngest = scheduler._roster.running[ids[-1]]
    scheduler._packing.retract(youngest)
    scheduler.audit()
    rig.run()
    assert rig.computed[ids[-1]] == 129
    assert scheduler.snapshot().retractions == 1


@pytest.mark.parametrize("chunk_tokens", [16, 48])
def test_a_prefill_that_is_sent_back_goes_on_where_it_was(chunk_tokens):
    rig = make_rig(num_rows=400, chunk_tokens=chunk_tokens)
    request = rig.add(range(200), max_tokens=4)
    for _ in range(3):
        rig.step()
    scheduler = rig.scheduler
    scheduler._packing.retract(scheduler._roster.running[request])
    plan = rig.step()
    assert plan.lanes[0].start == 3 * chunk_tokens
    rig.run(deep=True)
    assert rig.computed[request] == 203


def test_reported_cached_tokens_are_those_of_the_first_admission():
    rig, ids = crowded()
    rig.run()
    assert rig.scheduler.snapshot().retractions > 0
    assert all(rig.cached[number] == 0 for number in ids)
    assert rig.scheduler.snapshot().prompt_tokens == 60


def test_nobody_is_admitted_in_the_step_that_sends_one_back():
    rig, _ = crowded()
    seen = 0
    while rig.scheduler.has_work:
        rig.step()
        line = rig.lines[-1]
        if b'"retract"' in line:
            seen += 1
            assert b'"admit"' not in line
    assert seen


def test_output_does_not_depend_on_retraction():
    tight, ids = crowded()
    tight.run()
    roomy, _ = crowded(num_rows=4096)
    roomy.run()
    assert roomy.scheduler.snapshot().retractions == 0
    assert [tight.outputs[number] for number in ids] == [roomy.outputs[number] for number in ids]


def test_with_cache_off_it_starts_again_and_still_ends():
    rig, ids = crowded(is_enabled=False)
    rig.run(deep=True)
    assert rig.scheduler.snapshot().retractions > 0
    assert all(len(rig.outputs[number]) == 70 for number in ids)
