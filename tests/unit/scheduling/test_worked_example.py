"""The worked example of the memory semantics, token by token."""

from __future__ import annotations

import pytest

from simulation import make_rig

FIRST = list(range(100))


def checkpoint_depths(rig):
    return sorted(n.depth for n in rig.scheduler.cache.tree.nodes() if n.has_checkpoint)


def test_first_request_leaves_checkpoints_at_prompt_end_and_finish():
    rig = make_rig()
    request = rig.one(FIRST, max_tokens=10)
    assert rig.cached[request] == 0
    assert checkpoint_depths(rig) == [99, 109]


def test_exact_repeat_computes_one_token():
    rig = make_rig()
    rig.one(FIRST, max_tokens=10)
    again = rig.add(FIRST, max_tokens=10)
    plan = rig.step()
    assert [(lane.start, lane.end) for lane in plan.lanes] == [(99, 100)]
    rig.run()
    assert rig.cached[again] == 99
    assert rig.outputs[again] == rig.outputs[0]


def test_next_turn_computes_only_what_is_new():
    rig = make_rig()
    first = rig.one(FIRST, max_tokens=10)
    history = FIRST + rig.outputs[first][:9]
    turn = rig.add(history + list(range(500, 530)), max_tokens=5)
    plan = rig.step()
    assert [(lane.start, lane.end) for lane in plan.lanes] == [(109, 139)]
    rig.run()
    assert rig.cached[turn] == 109
    assert checkpoint_depths(rig) == [99, 109, 138, 143]


def test_path_cap_of_one_drops_interior_checkpoints():
    rig = make_rig(per_path=1)
    first = rig.one(FIRST, max_tokens=10)
    rig.add(FIRST + rig.outputs[first][:9] + list(range(500, 530)), max_tokens=5)
    rig.step()
    assert checkpoint_depths(rig) == [138]
    rig.run()
    assert checkpoint_depths(rig) == [143]


def test_shared_prefix_is_left_a_checkpoint_by_the_second_and_used_by_the_third():
    rig = make_rig()
    rig.one(FIRST, max_tokens=10)
    second = rig.one(FIRST[:60] + list(range(700, 740)), max_tokens=3)
    assert rig.cached[second] == 0
    assert rig.scheduler.snapshot().state_missed_tokens == 60
    assert 60 in checkpoint_depths(rig)
    third = rig.one(FIRST[:60] + list(range(800, 840)), max_tokens=3)
    assert rig.cached[third] == 60
    fork = [n for n in rig.scheduler.cache.tree.nodes() if n.depth == 60]
    assert fork[0].is_fork


@pytest.mark.parametrize("boundary", [20, 77])
def test_boundary_of_a_prompt_is_reused_from_the_second_use_on(boundary):
    rig = make_rig()
    rig.one(FIRST, max_tokens=10, boundaries=(boundary,))
    second = rig.one(FIRST[:boundary] + list(range(700, 740)), max_tokens=3)
    assert rig.cached[second] == boundary


def test_nothing_is_held_after_the_last_request():
    rig = make_rig()
    rig.one(FIRST, max_tokens=10)
    snapshot = rig.scheduler.snapshot()
    assert snapshot.kv.working == snapshot.state.working == 0
    assert rig.scheduler.flush()
    snapshot = rig.scheduler.snapshot()
    assert snapshot.kv.free == snapshot.kv.capacity
    assert snapshot.state.free == snapshot.state.capacity
