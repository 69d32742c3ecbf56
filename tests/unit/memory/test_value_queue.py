"""The queue of units by value."""

from __future__ import annotations

import numpy as np

from twinpool.memory.node import Node
from twinpool.memory.value import Value, class_number
from twinpool.memory.value_queue import ValueQueue
from twinpool.memory.work import PrefillWork

WORK = PrefillWork(flops_per_row=5, flops_per_pair=1, row_bytes=2, slot_bytes=30)


def leaf(root: Node, number: int, length: int, used: int) -> Node:
    """Return a leaf with a checkpoint."""
    node = Node(number, bytes(4 * length), np.arange(length, dtype=np.int32), root)
    node.checkpoint = number
    node.slot_used = used
    return node


def fresh() -> tuple[Node, Value, ValueQueue]:
    """Return a root, a policy that is 100 ticks old, and its empty queue."""
    policy = Value(WORK)
    policy.pass_tick(100)
    queue = ValueQueue(policy, lambda node: node.has_checkpoint)
    return Node(0, b"", np.empty(0, dtype=np.int32), None), policy, queue


def return_at(policy: Value, age: int, *kinds: int) -> None:
    """Have units of some kinds return at an age so often that it is known."""
    for _ in range(300):
        for kind in kinds:
            policy.returns.note_return(class_number(kind, 0, 0), age)


def test_entries_that_are_out_of_date_do_not_pile_up() -> None:
    root, _, queue = fresh()
    nodes = [leaf(root, number, 10 + number, 0) for number in range(1, 9)]
    for used in range(5000):
        node = nodes[used % 8]
        node.slot_used = used
        queue.push(node)
    assert sum(len(heap) for heap in queue._heaps.values()) < 2000
    assert queue.current() == {node.number for node in nodes}
    popped = [queue.pop() for _ in range(9)]
    assert popped[-1] is None
    assert queue._num_entries == sum(len(heap) for heap in queue._heaps.values())
    assert {node.number for node in popped[:-1]} == {node.number for node in nodes}


def test_a_look_takes_nothing_out() -> None:
    root, _, queue = fresh()
    assert queue.peek() is None
    nodes = [leaf(root, number, 10 + number, number) for number in range(1, 5)]
    for node in nodes:
        queue.push(node)
    seen = []
    while (found := queue.peek()) is not None:
        assert queue.peek() == found
        seen.append(found)
        assert queue.pop() is found[1]
    assert sorted(node.number for _, node in seen) == [1, 2, 3, 4]
    assert seen == sorted(seen, key=lambda each: each[0])


def test_what_was_weighed_does_not_pile_up() -> None:
    root, policy, queue = fresh()
    return_at(policy, 60, 4)
    # One bucket stays first; others are weighed again and again behind it.
    first = leaf(root, 1, 2, 0)
    queue.push(first)
    others = [leaf(root, number, 2 ** (number + 3), 0) for number in range(2, 6)]
    for now in range(100, 3000):
        policy.pass_tick(now)
        for node in others:
            node.kind = 4
            node.slot_used = now
            queue.push(node)
        assert queue.peek() == (policy.slot_key(first), first)
        assert len(queue._by_key) < 100
        assert len(queue._by_end) < 100


def test_of_like_units_the_oldest_goes_first() -> None:
    root, _, queue = fresh()
    young, old = leaf(root, 1, 10, 90), leaf(root, 2, 10, 20)
    queue.push(young)
    queue.push(old)
    assert queue.pop() is old


def test_what_was_weighed_and_used_since_is_weighed_anew() -> None:
    root, policy, queue = fresh()
    # Of two that are worth less and less with age, in buckets of their own.
    return_at(policy, 8, 1, 4)
    used, other = leaf(root, 1, 10, 10), leaf(root, 2, 10, 50)
    used.kind, other.kind = 1, 4
    queue.push(used)
    queue.push(other)
    assert queue.pop() is used
    queue.push(used)
    used.slot_used = 99
    queue.push(used)
    assert policy.slot_key(other) < policy.slot_key(used)
    assert queue.pop() is other
    assert queue.pop() is used


def test_an_older_one_comes_before_what_was_weighed_of_its_kind() -> None:
    root, policy, queue = fresh()
    return_at(policy, 8, 1, 4)
    young, between, old = (leaf(root, n, 10, used) for n, used in ((1, 90), (2, 50), (3, 10)))
    young.kind, between.kind, old.kind = 1, 4, 1
    assert policy.slot_key(old) < policy.slot_key(between) < policy.slot_key(young)
    queue.push(young)
    queue.push(between)
    assert queue.peek() == (policy.slot_key(between), between)
    queue.push(old)
    assert [queue.pop() for _ in range(3)] == [old, between, young]


def test_what_was_weighed_grows_old_all_the_same() -> None:
    root, policy, queue = fresh()
    for _ in range(300):
        policy.returns.note_return(class_number(1, 0, 0), 200)
        policy.returns.note_return(class_number(4, 0, 0), 60)
        policy.returns.note_loss(class_number(1, 0, 0))
    late, early = leaf(root, 1, 10, 90), leaf(root, 2, 10, 90)
    late.kind, early.kind = 1, 4
    queue.push(late)
    queue.push(early)
    assert queue.pop() is late
    queue.push(late)
    policy.pass_tick(190)
    assert policy.slot_key(early) < policy.slot_key(late)
    assert queue.pop() is early


def test_learning_changes_the_order_without_a_push() -> None:
    root, policy, queue = fresh()
    returning, leaving = leaf(root, 1, 10, 20), leaf(root, 2, 10, 90)
    returning.kind, leaving.kind = 1, 3
    queue.push(returning)
    queue.push(leaving)
    for _ in range(200):
        policy.returns.note_return(12, 100)
        policy.returns.note_loss(36)
    assert queue.pop() is leaving
