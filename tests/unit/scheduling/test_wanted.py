"""What waiting requests are about to reuse is worth keeping, and only while they wait."""

from __future__ import annotations

import numpy as np
import pytest

from simulation import Rig, make_rig
from twinpool.memory.node import Node
from twinpool.memory.value import WANTED, Value
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.known_match import forget_match, known_match
from twinpool.scheduling.request import Request
from twinpool.scheduling.sampling import SamplingParams

ORDERS = ("fcfs", "lpm", "least-work")
SESSIONS = 4
LENGTH = 60


def filled(order: str) -> Rig:
    """Return a rig that has served sessions alike: nothing but use tells their ends apart."""
    rig = make_rig(order=order, policy="value", max_running=1, num_rows=600, num_slots=24)
    for session in range(SESSIONS):
        rig.one(prompt(session), max_tokens=1)
    return rig


def prompt(session: int) -> list[int]:
    return [100 * session + place for place in range(LENGTH)]


def end_of(rig: Rig, session: int) -> Node:
    """Return where the next turn of a session would begin."""
    tokens = [*prompt(session), 7]
    match = rig.scheduler.cache.match("", np.array(tokens, dtype=np.int32))
    assert match.depth
    return match.node


def victims(rig: Rig) -> list[Node]:
    """Return what would be evicted, in that order; a leaf stands in both queues."""
    evictor = rig.scheduler.cache.evictor
    gone: dict[Node, None] = {}
    while (node := evictor.pop_first()) is not None:
        gone[node] = None
    for node in gone:
        evictor.push(node)
    return list(gone)


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_waiting_request_reuses_goes_after_its_like(order):
    rig = filled(order)
    ends = [end_of(rig, session) for session in range(SESSIONS)]
    assert [node for node in victims(rig) if node in ends] == ends
    wanted = ends[0]
    rig.add([*prompt(0), 7])
    assert wanted.num_wanting == 1
    assert [node for node in victims(rig) if node in ends] == [*ends[1:], wanted]
    rig.run()
    assert wanted.num_wanting == 0


def test_a_unit_is_certain_to_return_while_somebody_waits_for_it():
    rig = filled("least-work")
    policy = rig.scheduler.cache.policy
    assert isinstance(policy, Value)
    node = end_of(rig, 1)
    before = policy.slot_key(node)[0]
    ids = [rig.add([*prompt(1), number]) for number in (7, 8)]
    assert policy.bucket(node)[0] >= WANTED
    assert policy.chance(node) == 1.0
    assert policy.slot_key(node)[0] > before
    for request_id in ids:
        assert node.num_wanting > 0
        rig.scheduler.abort(request_id)
        rig.scheduler.audit()
    assert node.num_wanting == 0
    assert policy.bucket(node)[0] < WANTED


def test_what_is_lost_while_somebody_waits_for_it_is_not_wanted_for_ever():
    rig = filled("least-work")
    rig.add([5] * 30, max_tokens=40)
    rig.step()
    rig.add([*prompt(2), 7, 8, 9])
    lost = end_of(rig, 2)
    assert lost.num_wanting == 1
    while lost.parent is not None:
        assert rig.scheduler.cache.evictor.evict_for_slot("slots")
    rig.scheduler.audit()
    rig.run()
    assert lost.num_wanting == 0


def test_who_wants_logprobs_of_its_prompt_wants_no_prefix():
    rig = filled("least-work")
    node = end_of(rig, 0)
    used = node.slot_used
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    rig.add([*prompt(0), 7], sampling=sampling)
    assert (node.num_wanting, node.slot_used) == (0, used)
    rig.run()


@pytest.mark.parametrize("policy", ["lru", "joint-lru", "marconi"])
def test_other_policies_hear_of_nothing(policy):
    rig = make_rig(policy=policy, max_running=1)
    rig.one(prompt(0), max_tokens=1)
    node = end_of(rig, 0)
    rig.add([*prompt(0), 7])
    rig.scheduler.audit()
    assert node.num_wanting == 0


def test_who_wants_half_of_a_segment_wants_that_half_once_it_is_cut():
    rig = make_rig(order="lpm", policy="value", num_slots=8, needs_state=False)
    rig.one(range(100), max_tokens=1)
    cache = rig.scheduler.cache
    ids = np.array([*range(50), 7], dtype=np.int32)
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    request = Request(Arrival(request_id=9, prompt=ids, sampling=sampling), 9)
    known_match(request, cache)
    whole = request.wanted
    assert whole is not None
    assert (whole.depth, whole.num_wanting) == (100, 1)
    cache.unlock(cache.lock(cache.match("", ids)))
    half = known_match(request, cache).node
    assert (half.depth, half.num_wanting, whole.num_wanting) == (50, 1, 0)
    forget_match(request, cache)
    assert half.num_wanting == 0


def test_a_periodic_checkpoint_that_somebody_waits_for_is_not_replaced():
    rig = make_rig(order="lpm", policy="value", max_running=2, chunk_tokens=64, track_interval=64)
    rig.add(range(1000), max_tokens=4)
    rig.step()
    cache = rig.scheduler.cache
    ids = np.array([*range(64), 7], dtype=np.int32)
    found = cache.match("", ids)
    assert found.depth == 64
    cache.demand.want(found.node)
    rig.step(audit=False)
    rig.step(audit=False)
    assert cache.match("", ids).node is found.node
    cache.demand.unwant(found.node)
    rig.run()
