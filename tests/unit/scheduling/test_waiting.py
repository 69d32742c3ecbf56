"""The queue in its three orders, against sorting all of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from twinpool.errors import InvariantError
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.request import Request
from twinpool.scheduling.sampling import SamplingParams
from twinpool.scheduling.waiting import FEW, Waiting


def request(number: int) -> Request:
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    prompt = np.array([1, 2], dtype=np.int32)
    return Request(Arrival(request_id=1000 - number, prompt=prompt, sampling=sampling), number)


def test_ranks_given_taken_and_changed_stay_sorted_and_ties_go_to_the_older():
    rnd = random.Random(0)
    waiting, ranks = Waiting(), {}
    fresh = [request(number) for number in range(200)]
    gone: list[Request] = []
    for _ in range(2000):
        # One that was sent back comes to the end of the queue.
        source = gone if gone and rnd.random() < 0.3 else fresh
        if source and rnd.random() < 0.4:
            waiting.add(source.pop(0))
        queue = list(waiting.by_id.values())
        if queue and rnd.random() < 0.3:
            gone.append(rnd.choice(queue))
            assert waiting.pop(gone[-1].request_id) is gone[-1]
            ranks.pop(gone[-1].number, None)
            queue.remove(gone[-1])
        for each in [*waiting.unranked(), *rnd.sample(queue, min(2, len(queue)))]:
            ranks[each.number] = rnd.randint(0, 9)
            waiting.ranked.place(each, ranks[each.number])
        count = rnd.randint(0, 9)
        by_arrival = sorted(queue, key=lambda each: each.number)
        assert (
            waiting.ranked.first(count)
            == (sorted(queue, key=lambda each: (ranks[each.number], each.number))[:count])
        )
        assert waiting.by_arrival.first(count) == by_arrival[:count]
        assert waiting.between(count, count + 3) == queue[count : count + 3]
        if queue:
            middle = rnd.choice(queue)
            assert waiting.by_arrival.before(middle) == by_arrival[: by_arrival.index(middle)]
    assert waiting.pop(5000) is None


def test_those_that_have_no_rank_yet_are_the_last_to_come_in_that_order():
    waiting = Waiting()
    requests = [request(number) for number in range(5)]
    for each in requests[:3]:
        waiting.add(each)
        waiting.ranked.place(each, 7)
    waiting.pop(requests[0].request_id)
    for each in (requests[4], requests[0], requests[3]):
        waiting.add(each)
    assert waiting.unranked() == [requests[4], requests[0], requests[3]]
    waiting.ranked.clear()
    assert waiting.unranked() == [requests[1], requests[2], requests[4], requests[0], requests[3]]


@pytest.mark.parametrize(
    "harm",
    [
        lambda waiting: waiting.by_id.pop(1000),
        lambda waiting: waiting.by_arrival.drop(waiting.by_id[998]),
        lambda waiting: waiting.ranked.place(request(7), 1),
        lambda waiting: waiting.ranked._entries.reverse(),
        lambda waiting: waiting.ranked._ranks.update({1: 5}),
        lambda waiting: waiting.doubtful.update({7: request(7)}),
    ],
)
def test_the_audit_sees_views_that_do_not_agree(harm):
    waiting = Waiting()
    for each in [request(number) for number in range(3)]:
        waiting.add(each)
        waiting.ranked.place(each, -each.number)
    waiting.audit()
    harm(waiting)
    with pytest.raises(InvariantError):
        waiting.audit()


@pytest.mark.parametrize("count", [3, FEW, 500])
def test_many_that_come_at_once_are_ranked_as_one_by_one(count):
    rnd = random.Random(count)
    at_once, one_by_one = Waiting().ranked, Waiting().ranked
    for start in (0, count):
        requests = [request(number) for number in range(start, start + count)]
        ranks = [rnd.randint(0, 9) for _ in requests]
        at_once.place_all(requests, ranks)
        for each, rank in zip(requests, ranks, strict=True):
            one_by_one.place(each, rank)
        at_once.audit()
        assert at_once.numbers() == one_by_one.numbers()


def test_who_leaves_the_queue_is_forgotten_everywhere():
    waiting = Waiting()
    each = request(1)
    waiting.add(each)
    waiting.ranked.place(each, 3)
    waiting.doubtful[each.number] = each
    assert waiting.pop(each.request_id) is each
    views = (waiting.by_id, waiting.by_arrival, waiting.ranked, waiting.doubtful)
    assert [len(view) for view in views] == [0, 0, 0, 0]
