"""Returns after the next one."""

from __future__ import annotations

import random

import pytest

from twinpool.memory.repeats import Repeats
from twinpool.memory.returns import Returns
from twinpool.memory.value import NUM_CLASSES, Value, class_number

# Two chains of three: 0 -> 2 -> 4, 1 -> 3 -> 5.
NEXT = [2, 3, 4, 5, 4, 5]


def test_nothing_is_expected_of_what_nobody_has_seen_return() -> None:
    repeats = Repeats(Returns(6), NEXT)
    assert [repeats.after(kind) for kind in range(6)] == [0.0] * 6


def test_what_all_share_counts_as_often_as_it_returns_while_another_returns_once() -> None:
    returns = Returns(6)
    repeats = Repeats(returns, NEXT)
    for _ in range(640):
        # Single units return at about 100; of the shared one somebody wants the next at 6.
        returns.note_return(1, 100)
        returns.note_return(0, 100)
        returns.note_return(2, 6)
        returns.note_return(4, 6)
    assert repeats.after(4) == pytest.approx(96 / 6, rel=0.01)
    assert repeats.after(2) == pytest.approx(repeats.after(4) + 1, rel=0.01)
    assert repeats.after(0) == pytest.approx(repeats.after(4) + 2, rel=0.02)
    # Nobody has seen one of the other chain return twice.
    assert repeats.after(1) == repeats.after(3) == repeats.after(5) == 0


def test_what_returns_as_seldom_as_others_counts_little_more_than_once() -> None:
    returns = Returns(6)
    repeats = Repeats(returns, NEXT)
    for _ in range(640):
        returns.note_return(0, 6)
        returns.note_return(4, 1000)
    assert repeats.after(4) < 0.01


def test_what_goes_on_half_of_the_time_counts_once_more() -> None:
    returns = Returns(6)
    repeats = Repeats(returns, NEXT)
    for _ in range(640):
        returns.note_return(0, 1000)
        returns.note_return(4, 6)
        returns.note_loss(4)
    assert repeats.after(4) == pytest.approx(1.0, rel=0.02)


def test_classes_of_units_lead_to_that_of_a_unit_that_has_been_continued() -> None:
    rnd = random.Random(0)
    policy = Value()
    for _ in range(500):
        policy.returns.note_return(class_number(4, 2, 0), rnd.randint(1, 4))
        policy.returns.note_return(class_number(4, 0, 0), 200)
        policy.returns.note_return(class_number(4, 1, 0), 200)
    after = [policy.repeats.after(kind) for kind in range(NUM_CLASSES)]
    assert [kind for kind, count in enumerate(after) if count > 0] == [
        class_number(4, hits, 0) for hits in range(3)
    ]


def test_what_was_counted_before_counts() -> None:
    returns = Returns(6)
    for _ in range(640):
        returns.note_return(0, 100)
        returns.note_return(4, 6)
    assert Repeats(returns, NEXT).after(4) == pytest.approx(96 / 6, rel=0.01)


def test_what_is_wanted_again_at_once_has_an_age_all_the_same() -> None:
    returns = Returns(6)
    for _ in range(640):
        returns.note_return(0, 100)
        returns.note_return(4, 0)
    assert Repeats(returns, NEXT).after(4) == pytest.approx(96, rel=0.01)
