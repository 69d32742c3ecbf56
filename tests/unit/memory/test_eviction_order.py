"""Eviction order: who goes first, under each policy, and that the queues never miss anyone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from twinpool.errors import ConfigError
from twinpool.memory.eviction import POLICY_NAMES, VictimQueue, eviction_policy
from twinpool.memory.node import NO_SLOT, Node


def node(number: int, *, rows_used: int, slot_used: int = 0, depth: int = 4, slot: int = 1) -> Node:
    made = Node(number, bytes(4 * depth), np.arange(depth, dtype=np.int32), None)
    made.row_used, made.slot_used, made.checkpoint = rows_used, slot_used, slot
    return made


def test_lru_takes_each_pool_by_its_own_recency():
    walked, matched = node(1, rows_used=9, slot_used=1), node(2, rows_used=2, slot_used=8)
    policy = eviction_policy("lru")
    assert min([walked, matched], key=policy.row_key) is matched
    assert min([walked, matched], key=policy.slot_key) is walked


def test_joint_lru_takes_a_leaf_as_one_unit():
    walked, matched = node(1, rows_used=9, slot_used=1), node(2, rows_used=2, slot_used=8)
    policy = eviction_policy("joint-lru")
    assert min([walked, matched], key=policy.row_key) is matched
    assert min([walked, matched], key=policy.slot_key) is matched


def test_joint_lru_takes_a_checkpoint_that_would_go_alone_by_its_own_use():
    policy = eviction_policy("joint-lru")
    interior, locked, leaf = (node(n, rows_used=9, slot_used=1) for n in (1, 2, 3))
    interior.children[b"x"] = leaf
    locked.row_locks = 1
    assert policy.slot_key(interior)[0] == policy.slot_key(locked)[0] == 1
    assert policy.slot_key(leaf)[0] == 9


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_of_equals_the_deepest_goes(name):
    policy = eviction_policy(name)
    shallow = node(1, rows_used=3, slot_used=3, depth=4)
    deep = node(2, rows_used=3, slot_used=3, depth=9)
    assert min([shallow, deep], key=policy.slot_key) is deep
    assert min([shallow, deep], key=policy.row_key) is deep


def test_unknown_policies_are_refused_by_name():
    with pytest.raises(ConfigError, match="mru") as error:
        eviction_policy("mru")
    assert "joint-lru" in error.value.hint


def test_the_queue_gives_every_candidate_once_in_order_whatever_changes():
    rnd = random.Random(1)
    policy = eviction_policy("lru")
    queue = VictimQueue(policy.slot_key, lambda n: n.has_checkpoint and not n.slot_locks)
    nodes = [node(number, rows_used=0, slot_used=number) for number in range(400)]
    for made in nodes:
        queue.push(made)
    for tick in range(1000, 9000):
        chosen = rnd.choice(nodes)
        chosen.slot_used = tick
        chosen.slot_locks = int(rnd.random() < 0.2)
        queue.push(chosen)
    expected = sorted((n for n in nodes if not n.slot_locks), key=policy.slot_key)
    found = []
    while (victim := queue.pop()) is not None:
        victim.checkpoint = NO_SLOT
        found.append(victim)
    assert found == expected


def test_stale_entries_do_not_pile_up():
    queue = VictimQueue(eviction_policy("lru").slot_key, lambda n: n.has_checkpoint)
    only = node(1, rows_used=0)
    for tick in range(50_000):
        only.slot_used = tick
        queue.push(only)
    assert len(queue._heap) < 3000
    assert queue.current() == {1}


def test_what_is_no_candidate_is_not_queued():
    queue = VictimQueue(eviction_policy("lru").slot_key, lambda n: n.has_checkpoint)
    queue.push(node(1, rows_used=0, slot=NO_SLOT))
    assert queue.pop() is None
