"""Sweeps look where it is best, name the falls on both sides, and recommend what they have seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinpool.errors import ConfigError
from twinpool.replay.sweep import (
    Point,
    best_of,
    cliffs,
    coarse_slots,
    finer_slots,
    recommend,
)


def points(rates: dict[int, float]) -> list[Point]:
    return [
        Point(state_slots=slots, hit_rate=rate, output_tokens_per_s=100 + 900 * rate)
        for slots, rate in rates.items()
    ]


PUBLISHED = points({40: 0.0, 80: 0.2, 140: 0.6, 192: 0.89, 220: 0.88, 300: 0.22, 429: 0.06})


@given(low=st.integers(1, 50), span=st.integers(0, 5000), count=st.integers(2, 20))
def test_coarse_splits_rise_from_end_to_end(low: int, span: int, count: int) -> None:
    chosen = coarse_slots(low, low + span, count)
    assert chosen == sorted(set(chosen))
    assert (chosen[0], chosen[-1]) == (low, low + span)
    assert len(chosen) <= count


def test_no_room_for_a_split_is_said_with_numbers() -> None:
    with pytest.raises(ConfigError, match=r"hold 3 state slots .* needs 5"):
        coarse_slots(5, 3)


def test_finer_splits_lie_beside_the_best() -> None:
    assert finer_slots(PUBLISHED) == [164, 206]
    assert finer_slots([]) == []
    assert finer_slots(points({7: 0.5, 8: 0.4})) == []


def test_both_cliffs_are_found_at_their_steepest() -> None:
    state, kv = cliffs(PUBLISHED)
    assert (state.side, state.from_slots, state.to_slots) == ("state", 140, 80)
    assert (kv.side, kv.from_slots, kv.to_slots) == ("kv", 220, 300)
    assert cliffs(points({1: 0.5, 2: 0.52, 3: 0.5})) == ()
    assert cliffs([]) == ()


@given(st.dictionaries(st.integers(1, 1000), st.floats(0, 1), min_size=1, max_size=12))
def test_what_is_recommended_was_tried_and_is_nearly_the_best(rates: dict[int, float]) -> None:
    tried = points(rates)
    found = recommend(tried)
    chosen = next(point for point in tried if point.state_slots == found.state_slots)
    assert chosen.output_tokens_per_s >= 0.98 * best_of(tried).output_tokens_per_s
    assert found.low <= found.state_slots <= found.high
    assert found.why


def test_the_middle_of_a_plateau_is_recommended() -> None:
    flat = points({50: 0.1, 100: 0.9, 200: 0.9, 400: 0.9, 800: 0.1})
    found = recommend(flat)
    assert (found.low, found.state_slots, found.high) == (100, 200, 400)
