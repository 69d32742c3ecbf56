"""Who may push out what will be wanted again, and when."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from twinpool.memory.tree_records import nothing_matched
from twinpool.memory.work import NEUTRAL
from twinpool.scheduling.counters import Counters
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.request import Request
from twinpool.scheduling.rotation import (
    CROWD,
    LEAST_SHARE,
    MAX_CHARGED_DEBT,
    MAX_CREDIT,
    MAX_DEBT,
    MOST_SHARE,
    PATIENCE,
    Rotation,
)
from twinpool.scheduling.sampling import SamplingParams
from twinpool.scheduling.work_clock import WorkClock

CAPACITY = 10_000


class Bench:
    """A rotation over a memory whose losses the test sets."""

    def __init__(self) -> None:
        self.clock = WorkClock(NEUTRAL)
        self.cache = SimpleNamespace(
            version=0,
            demand=SimpleNamespace(version=0),
            evictor=SimpleNamespace(thrashed_work=0),
            rows=SimpleNamespace(capacity=CAPACITY),
            changed_at=lambda namespace: self.cache.version,
        )
        self.losses: dict[int, float] = {}
        self.asked: list[int] = []
        self.counters = Counters()
        admission = SimpleNamespace(expected_loss=self._expected_loss)
        self.rotation = Rotation(self.clock, self.cache, admission, self.counters)  # type: ignore[arg-type]
        self._num_made = 0

    def _expected_loss(self, request: Request, match: object, limit: float) -> float:
        self.asked.append(request.number)
        return self.losses[request.number]

    def request(self, num_tokens: int, loss: float, *, matched: int = 0) -> Request:
        sampling = SamplingParams(max_tokens=4, temperature=0.0)
        prompt = np.arange(num_tokens, dtype=np.int32)
        arrival = Arrival(request_id=self._num_made, prompt=prompt, sampling=sampling)
        request = Request(arrival, self._num_made)
        request.arrived_at = self.clock.now
        request.known_match = SimpleNamespace(depth=matched) if matched else nothing_matched()  # type: ignore[assignment]
        self.losses[request.number] = loss
        self._num_made += 1
        return request

    def pass_(self, queue: list[Request], num_running: int = 4) -> list[int]:
        """Look through a queue once; returns who may start, and lets them pay."""
        self.cache.version += 1
        for request in queue:
            request.known_at = self.cache.version
        self.rotation.begin(queue, num_running)
        allowed = []
        for request in queue:
            assert request.known_match is not None
            if self.rotation.allows(request, request.known_match, num_running):
                self.rotation.pay()
                allowed.append(request.number)
        return allowed

    def work(self, amount: int, *, thrashed: int = 0, num_waiting: int = 1) -> None:
        self.clock.pass_prefill(0, amount)
        self.cache.evictor.thrashed_work += thrashed
        self.rotation.note_step(num_waiting)

    def work_until_allowed(self, request: Request, step: int = 10) -> int:
        """Do work until a request may start; returns how much it took."""
        done = 0
        while request.number not in self.pass_([request]):
            self.work(step)
            done += step
            assert done < 100 * CAPACITY, "it waits for ever"
        return done


def test_the_purse_is_for_whoever_came_first_whatever_the_order() -> None:
    bench = Bench()
    old, small, last = (bench.request(n, loss=n) for n in (900, 20, 30))
    # Small ones stand before it in the queue; they cost something, and it is not their turn.
    assert bench.pass_([small, last, old]) == [old.number]


def test_while_the_first_has_to_wait_so_do_the_others_unless_resident_or_free() -> None:
    bench = Bench()
    bench.pass_([bench.request(500, loss=400)])
    old, young = bench.request(900, loss=900), bench.request(20, loss=0)
    resident = bench.request(100, loss=100, matched=90)
    assert bench.pass_([resident, young, old]) == [resident.number]
    bench.work(int(400 / LEAST_SHARE) + 10)
    assert bench.pass_([young, old]) == [young.number, old.number]


def test_nobody_else_is_asked_for_while_the_first_waits() -> None:
    bench = Bench()
    bench.pass_([bench.request(500, loss=400)])
    bench.asked.clear()
    queue = [bench.request(100, loss=90) for _ in range(50)]
    bench.pass_(queue)
    assert bench.asked == [queue[0].number]


def test_who_was_refused_is_asked_again_once_others_want_less() -> None:
    bench = Bench()
    bench.pass_([bench.request(500, loss=400)])
    first = bench.request(900, loss=900)
    assert first.known_match is not None
    assert bench.pass_([first]) == []
    bench.asked.clear()
    assert not bench.rotation.allows(first, first.known_match, 4)
    assert not bench.asked
    bench.losses[first.number] = 0
    bench.cache.demand.version += 1
    assert bench.rotation.allows(first, first.known_match, 4)


def test_a_loss_is_paid_for_with_a_share_of_the_work() -> None:
    bench = Bench()
    assert bench.pass_([bench.request(500, loss=300)])
    took = bench.work_until_allowed(bench.request(500, loss=300))
    assert 300 / MOST_SHARE <= took <= 300 / LEAST_SHARE + 20


def test_the_share_grows_with_the_wait_of_the_first() -> None:
    bench = Bench()
    waiting = bench.request(500, loss=300)
    bench.clock.pass_prefill(0, int(PATIENCE * CAPACITY))
    bench.rotation.note_step(num_waiting=1)
    assert bench.pass_([bench.request(500, loss=300)])
    took = bench.work_until_allowed(waiting)
    assert took == pytest.approx(300 / MOST_SHARE, abs=20)


def test_thrash_that_was_not_paid_for_is_charged_and_the_debt_has_a_bound() -> None:
    bench = Bench()
    bench.work(1, thrashed=200)
    assert bench.work_until_allowed(bench.request(500, loss=300)) >= 200 / MOST_SHARE
    bench = Bench()
    bench.work(1, thrashed=1000 * CAPACITY)
    took = bench.work_until_allowed(bench.request(500, loss=300))
    debt = MAX_CHARGED_DEBT * CAPACITY
    assert debt / MOST_SHARE <= took <= debt / LEAST_SHARE + 20


def test_what_admissions_pay_may_go_deeper_and_a_charge_forgives_nothing() -> None:
    bench = Bench()
    assert bench.pass_([bench.request(50_000, loss=20_000)])
    bench.work(1, thrashed=1000 * CAPACITY)
    took = bench.work_until_allowed(bench.request(500, loss=300))
    assert MAX_DEBT * CAPACITY / MOST_SHARE <= took <= MAX_DEBT * CAPACITY / LEAST_SHARE + 20


def test_nothing_is_earned_beyond_all_debt_while_somebody_waits() -> None:
    bench = Bench()
    bench.work(1000 * CAPACITY)
    assert bench.pass_([bench.request(500, loss=300)])
    assert not bench.pass_([bench.request(500, loss=300)])


@pytest.mark.parametrize("hours", [1, 1000])
def test_a_quiet_hour_buys_the_beginning_of_a_storm_alone(hours: int) -> None:
    bench = Bench()
    bench.work(hours * CAPACITY, num_waiting=0)
    loss = int(MAX_CREDIT * CAPACITY / 4)
    # The last one may begin a debt.
    for _ in range(5):
        assert bench.pass_([bench.request(500, loss=loss)])
    assert not bench.pass_([bench.request(500, loss=loss)])


def test_what_was_kept_stays_while_somebody_waits_and_pays_for_thrash() -> None:
    bench = Bench()
    bench.work(CAPACITY, num_waiting=0)
    bench.work(CAPACITY, num_waiting=1)
    assert bench.pass_([bench.request(500, loss=200)])
    bench.work(1, thrashed=200 + 90, num_waiting=1)
    assert bench.pass_([bench.request(500, loss=50)])
    assert not bench.pass_([bench.request(500, loss=50)])


@pytest.mark.parametrize(
    ("num_running", "loss", "is_admitted"),
    [
        # Answers of 200 tokens: each step costs 180 by itself, so a seat among 48 is worth 750.
        (CROWD, 700, True),
        (CROWD, 800, False),
        (10 * CROWD, 70, True),
        (10 * CROWD, 90, False),
        (CROWD - 1, 40_000, True),
    ],
)
def test_a_crowd_admits_what_its_seat_is_worth(
    num_running: int, loss: float, is_admitted: bool
) -> None:
    bench = Bench()
    bench.counters.output_tokens, bench.counters.finished = 200 * 100 - 256, {"stop": 99}
    allowed = bench.pass_([bench.request(50_000, loss=loss)], num_running)
    assert bool(allowed) == is_admitted


def test_what_starts_while_nothing_runs_pays_for_nobody_else() -> None:
    bench = Bench()
    assert bench.pass_([bench.request(500, loss=300)])
    bench.work_until_allowed(bench.request(500, loss=300))
    bench.work(int(300 / LEAST_SHARE) + 20)
    # Nobody is asked, as the scheduler does where nothing runs.
    bench.rotation.begin([bench.request(500, loss=300)], 0)
    bench.rotation.pay()
    assert bench.pass_([bench.request(500, loss=300)])


def test_who_was_turned_away_is_asked_for_again_when_things_change() -> None:
    bench = Bench()
    bench.pass_([bench.request(500, loss=100)])
    old = bench.request(500, loss=300)
    bench.pass_([old])
    bench.asked.clear()
    # Nothing has changed: the answer stays. Then the purse is out of debt.
    bench.rotation.begin([old], 4)
    assert bench.asked == []
    bench.work(2000)
    bench.rotation.begin([old], 4)
    assert bench.asked == [old.number]
