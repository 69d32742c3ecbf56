"""Likelihoods learned from returns and losses."""

from __future__ import annotations

import itertools
import random

import pytest

from twinpool.memory.returns import NUM_AGES, Returns, likelihoods


def test_likelihoods_never_rise_with_age() -> None:
    rnd = random.Random(0)
    for _ in range(50):
        returned = [rnd.choice([0.0, 0.0, 3.0, 40.0]) for _ in range(NUM_AGES)]
        found = likelihoods(returned, rnd.choice([0.0, 5.0, 500.0]))
        assert all(young >= old for young, old in itertools.pairwise(found))
        assert all(0 <= chance <= 1 for chance in found)


def test_many_events_speak_for_themselves() -> None:
    returned = [0.0] * NUM_AGES
    returned[5], returned[9] = 600.0, 300.0
    found = likelihoods(returned, 100.0)
    # Of 1000 units 900 return; of those that have not by age bin 6, 300 of 400.
    assert found[0] == pytest.approx(0.9, abs=0.01)
    assert found[6] == pytest.approx(0.75, abs=0.02)
    assert found[12] < 0.1


def test_what_never_returns_is_worth_little_at_once() -> None:
    returns = Returns(2)
    before = returns.likelihood(1, 0)
    for _ in range(300):
        returns.note_loss(1)
    assert returns.likelihood(1, 0) < 0.05 < before
    assert returns.likelihood(0, 0) == before


def test_a_class_of_few_events_is_soon_known():
    # Of a class that nobody has asked for, the belief that it returns must not outlast the first
    # few that went unseen: there may never be many.
    returns = Returns(1)
    chances = [returns.likelihood(0, 0)]
    for _ in range(40):
        returns.note_loss(0)
        chances.append(returns.likelihood(0, 0))
    assert all(young >= old for young, old in itertools.pairwise(chances))
    for count in (4, 8, 16, 32):
        exact = likelihoods([0.0] * NUM_AGES, float(count))[0]
        earlier = likelihoods([0.0] * NUM_AGES, 0.75 * count)[0]
        assert exact <= chances[count] <= earlier


def test_what_was_seen_alone_assumes_nothing() -> None:
    returns = Returns(2)
    assert returns.seen(0, 0) == 0 < returns.likelihood(0, 0)
    for _ in range(500):
        returns.note_return(0, 100)
        returns.note_loss(0)
    assert returns.seen(0, 0) == pytest.approx(0.5, abs=0.05)
    # Nobody ever came back later.
    assert returns.seen(0, 1000) == 0
    assert returns.seen(1, 0) == 0


def test_what_the_traffic_does_now_counts_most() -> None:
    returns = Returns(1)
    for _ in range(3000):
        returns.note_loss(0)
    for _ in range(3000):
        returns.note_return(0, 10)
    assert returns.likelihood(0, 0) > 0.6
