"""Sharing among requests that are in flight at the same time: who waits for whom, and for how long.

A request does not compute what a running prefill is about to leave behind.
"""

from __future__ import annotations

import itertools

import pytest

from simulation import make_rig

PROMPT = list(range(300))


@pytest.mark.parametrize("chunk_tokens", [64, 4096])
@pytest.mark.parametrize("needs_state", [True, False])
def test_a_burst_of_equal_prompts_computes_the_prompt_once(chunk_tokens, needs_state):
    rig = make_rig(
        chunk_tokens=chunk_tokens, needs_state=needs_state, num_slots=64 if needs_state else 0
    )
    ids = [rig.add(PROMPT, max_tokens=1) for _ in range(8)]
    rig.run()
    assert sum(rig.computed.values()) == 300 + 7
    assert [rig.cached[number] for number in ids] == [0] + [299] * 7


@pytest.mark.parametrize("chunk_tokens", [64, 4096])
def test_a_shared_system_prompt_is_computed_once_even_when_all_arrive_at_once(chunk_tokens):
    rig = make_rig(chunk_tokens=chunk_tokens, num_rows=8192)
    ids = [rig.add(PROMPT + [1000 + number] * 50, max_tokens=1) for number in range(6)]
    rig.run()
    assert [rig.cached[number] for number in ids] == [0] + [300] * 5


def test_waiting_for_another_does_not_hold_up_those_behind():
    rig = make_rig(chunk_tokens=512)
    rig.add(PROMPT, max_tokens=1)
    rig.add(PROMPT, max_tokens=1)
    other = rig.add([7] * 40, max_tokens=1)
    plan = rig.step()
    assert [lane.request_id for lane in plan.lanes] == [0, other]
    rig.run()


def test_a_prompt_does_not_wait_for_one_that_only_ends_alike():
    rig = make_rig(chunk_tokens=512)
    rig.one([1] * 60, max_tokens=1)
    tail = list(range(200))
    # The second matches 59 tokens, and from there on it looks like the first.
    ids = [rig.add([2] * 59 + tail, max_tokens=1), rig.add([1] * 59 + tail, max_tokens=1)]
    plan = rig.step()
    assert [lane.request_id for lane in plan.lanes] == ids
    assert rig.cached[ids[1]] == 59


def test_a_late_arrival_asks_the_running_prefill_for_what_it_will_share():
    rig = make_rig(chunk_tokens=64)
    rig.add(PROMPT, max_tokens=1)
    rig.step()
    late = rig.add(PROMPT[:200] + [9] * 50, max_tokens=1)
    rig.run()
    assert rig.cached[late] == 200


def test_places_asked_for_are_few_and_apart():
    rig = make_rig(chunk_tokens=2048, num_rows=20_000)
    rig.add(range(1500), max_tokens=1)
    for cut in range(600, 660, 2):
        rig.add([*range(cut), 7], max_tokens=1)
    for cut in range(100, 1400, 50):
        rig.add([*range(cut), 8], max_tokens=1)
    plan = rig.step()
    depths = [write.depth for write in plan.lanes[0].checkpoints]
    assert len(depths) <= 9
    assert all(later - earlier >= 32 for earlier, later in itertools.pairwise(depths))
    rig.run()


def test_short_common_beginnings_are_not_waited_for():
    rig = make_rig(chunk_tokens=64)
    rig.add(PROMPT, max_tokens=1)
    second = rig.add(PROMPT[:20] + [5] * 20, max_tokens=1)
    rig.step()
    rig.step()
    assert rig.ended.get(second) is None
    plans = []
    while second not in rig.ended:
        plans.append([lane.request_id for lane in rig.step().lanes])
    assert rig.cached[second] == 0
    rig.run()


def test_namespaces_do_not_wait_for_each_other():
    rig = make_rig(chunk_tokens=512)
    rig.add(PROMPT, max_tokens=1, namespace="a")
    rig.add(PROMPT, max_tokens=1, namespace="b")
    plan = rig.step()
    assert len(plan.lanes) == 2
    rig.run()
    assert rig.cached == {0: 0, 1: 0}


def test_nobody_waits_for_ever_when_no_checkpoint_can_be_left():
    rig = make_rig(num_slots=2, max_running=2, chunk_tokens=64)
    ids = [rig.add([*PROMPT, number], max_tokens=3) for number in range(5)]
    rig.run(max_steps=200)
    assert set(rig.ended) == set(ids)


def test_an_aborted_prefill_frees_those_that_waited_for_it():
    rig = make_rig(chunk_tokens=64)
    first = rig.add(PROMPT, max_tokens=1)
    second = rig.add(PROMPT, max_tokens=1)
    rig.step()
    assert rig.scheduler.abort(first)
    plan = rig.step()
    assert [lane.request_id for lane in plan.lanes] == [second]
    rig.run()


def test_a_model_without_linear_layers_shares_its_rows_while_it_prefills():
    rig = make_rig(needs_state=False, num_slots=0, chunk_tokens=64)
    rig.add(PROMPT, max_tokens=1)
    rig.step()
    rig.step()
    assert rig.scheduler.snapshot().kv.cached == 128
    rig.run()
