"""A queue that is kept sorted is looked at as one that is sorted anew in every pass.

Two schedulers get the same random traffic, one with the order and one with its twin: queues grow
far beyond what is matched in a pass, drain and grow again; requests are aborted, sent back and
tied. Every decision is the same, to the byte.
"""

from __future__ import annotations

import random

import pytest

from simulation import Rig, make_rig
from sorted_orders import SortedArrivals, SortedLeastWork, SortedLpm
from twinpool.memory.arena import Arena
from twinpool.scheduling import order as queue_orders
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE
from twinpool.scheduling.least_work import LeastWork
from twinpool.scheduling.sampling import SamplingParams

# Small, so that it happens often.
MAX_PASSED = 5
ORDERS = ("least-work", "lpm", "fcfs")
POOLS = {
    "static": {"policy": "joint-lru", "num_rows": 700, "num_slots": 24},
    "arena": {"policy": "value", "arena": (60, 10)},
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(queue_orders, "MAX_PASSED", MAX_PASSED)


def rig_of(order: str, pools: str) -> Rig:
    fields = dict(POOLS[pools])
    if "arena" in fields:
        fields["arena"] = Arena(*fields["arena"])
    return make_rig(order=order, chunk_tokens=128, max_running=12, **fields)


def with_twin(rig: Rig) -> Rig:
    """Let the twin of its order look at the queue of a rig."""
    scheduler = rig.scheduler
    queue_pass = scheduler._queue_pass
    name = queue_pass._order.name
    if name == "least-work":
        queue_pass._order = SortedLeastWork(scheduler._clock)
    elif name == "fcfs":
        queue_pass._order = SortedArrivals()
    else:
        twin = queue_pass._order = SortedLpm(MAX_PASSED)
        start = queue_pass._start

        def counted(draft, request, match):
            twin.note_start(request, scheduler._roster.waiting)
            start(draft, request, match)

        queue_pass._start = counted
    return rig


def drive(rig: Rig, seed: int, *, num_requests: int = 450) -> int:
    """Send random traffic until all has ended; returns the longest queue."""
    rnd = random.Random(seed)
    stems = [[rnd.randint(0, 9) for _ in range(rnd.choice([5, 40, 90]))] for _ in range(8)]
    sent: list[int] = []
    longest = 0
    while len(sent) < num_requests or rig.scheduler.has_work:
        num_waiting = rig.scheduler.num_waiting
        longest = max(longest, num_waiting)
        # Bursts, and between them the queue drains to where all of it is matched.
        burst = rnd.choice([0, 1, 3, 200]) if num_waiting < 100 else rnd.randint(0, 1)
        for _ in range(min(burst, num_requests - len(sent))):
            stem = rnd.choice(stems)
            prompt = stem[: rnd.randint(1, len(stem))] + [rnd.randint(10, 12)] * rnd.randint(0, 9)
            sampling = SamplingParams(
                max_tokens=rnd.choice([1, 2, 12]),
                temperature=0.0,
                prompt_logprobs=0 if rnd.random() < 0.05 else None,
            )
            sent.append(rig.add(prompt, sampling=sampling, namespace=rnd.choice(["", "", "b"])))
        rig.step(audit=False)
        running = rig.scheduler.running_ids
        if running and rnd.random() < 0.05:
            packing, roster = rig.scheduler._packing, rig.scheduler._roster
            packing.retract(roster.running[rnd.choice(running)])
        if sent and rnd.random() < 0.1:
            rig.scheduler.abort(rnd.choice(sent[-300:]))
        waiting = rig.scheduler._roster.waiting.by_id.values()
        oldest = min(waiting, key=lambda request: request.number, default=None)
        assert rig.scheduler._roster.waiting.by_arrival.first(1) == ([oldest] if oldest else [])
    rig.scheduler.audit()
    return longest


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pools", POOLS)
@pytest.mark.parametrize("order", ORDERS)
def test_decisions_are_those_of_a_queue_that_is_sorted_anew(
    order: str, pools: str, seed: int
) -> None:
    kept, anew = rig_of(order, pools), with_twin(rig_of(order, pools))
    longest = drive(kept, seed)
    assert longest > 1.5 * MAX_MATCHED_QUEUE
    drive(anew, seed)
    assert kept.lines == anew.lines


def test_the_twin_finds_a_rank_that_is_not_renewed(monkeypatch) -> None:
    first = LeastWork.first

    def forgetful(order, waiting, cache, count):
        queue = first(order, waiting, cache, count)
        waiting.doubtful.clear()
        return queue

    monkeypatch.setattr(LeastWork, "first", forgetful)
    kept, anew = rig_of("least-work", "arena"), with_twin(rig_of("least-work", "arena"))
    drive(kept, 0)
    drive(anew, 0)
    assert kept.lines != anew.lines


def test_the_twin_finds_passes_that_are_not_counted() -> None:
    kept, anew = rig_of("lpm", "static"), with_twin(rig_of("lpm", "static"))
    kept.scheduler._queue_pass._order.counts_passes = False
    drive(kept, 0)
    drive(anew, 0)
    assert kept.lines != anew.lines
