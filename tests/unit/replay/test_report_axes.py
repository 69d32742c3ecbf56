"""Scales, ticks, labels, numbers and markup of the report."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinpool.replay.report import numerals, svg
from twinpool.replay.report.axes import Scale, apart, clock_ticks, thinned, ticks
from twinpool.replay.report.markup import Markup, join, short, tag
from twinpool.replay.report.tables import unit_of

POSITIVE = st.floats(min_value=1e-6, max_value=1e12)


@given(st.lists(POSITIVE, min_size=2, max_size=20), st.booleans())
def test_a_scale_is_monotone_and_stays_within_its_ends(values: list[float], is_log: bool) -> None:
    values.sort()
    scale = Scale(low=values[0], high=values[-1], start=50.0, end=900.0, is_log=is_log)
    places = [scale(value) for value in values]
    assert places == sorted(places)
    assert all(49.99 <= place <= 900.01 for place in places)


def test_a_scale_keeps_what_lies_outside_at_its_edge() -> None:
    scale = Scale(low=10.0, high=1000.0, start=0.0, end=200.0, is_log=True)
    assert scale(100.0) == pytest.approx(100.0)
    assert scale(0.0) == 0.0
    assert scale(5000.0) == 200.0


@given(POSITIVE, st.integers(min_value=3, max_value=8))
def test_ticks_are_even_and_reach_the_largest_value(high: float, at_most: int) -> None:
    values = ticks(high, at_most)
    assert values[0] == 0
    assert values[-1] >= high * (1 - 1e-6)
    assert values[-2] < high
    assert 2 <= len(values) <= at_most + 1
    step = values[1]
    assert all(value == pytest.approx(at * step) for at, value in enumerate(values))


def test_ticks_of_nothing_still_make_an_axis() -> None:
    assert ticks(0.0) == [0.0, 1.0]


@given(st.floats(min_value=0, max_value=1e6), st.floats(min_value=0.5, max_value=1e7))
def test_clock_ticks_lie_within_the_span(low: float, span: float) -> None:
    values = clock_ticks(low, low + span)
    assert 1 <= len(values) <= 16
    assert all(low - 1 <= value <= low + span + 1 for value in values)


def test_an_hour_has_a_tick_every_ten_minutes() -> None:
    assert clock_ticks(0.0, 3618.0) == [600.0 * at for at in range(7)]


@given(st.lists(st.floats(min_value=0, max_value=300), max_size=15))
def test_places_moved_apart_keep_order_distance_and_room(places: list[float]) -> None:
    moved = apart(places, 16.0, 0.0, 300.0)
    ranked = [moved[at] for at in sorted(range(len(places)), key=lambda at: (places[at], at))]
    assert all(b - a >= 15.999 for a, b in itertools.pairwise(ranked))
    assert all(0.0 <= place <= 300.001 for place in moved)


def test_places_that_are_apart_stay() -> None:
    assert apart([100.0, 20.0, 60.0], 16.0, 0.0, 200.0) == [100.0, 20.0, 60.0]


def test_a_place_that_is_in_no_ones_way_is_not_moved_by_others() -> None:
    assert apart([5.0, 5.0, 200.0], 16.0, 0.0, 300.0) == [5.0, 21.0, 200.0]


def test_more_places_than_room_run_over_the_end_in_order() -> None:
    assert apart([5.0] * 4, 10.0, 0.0, 20.0) == [0.0, 10.0, 20.0, 30.0]


def test_thinned_labels_keep_their_distance_and_those_that_come_first() -> None:
    assert thinned([0.0, 10.0, 20.0, 30.0, 40.0], 15.0, first=[3]) == [0, 3]
    assert thinned([0.0, 20.0, 40.0], 15.0) == [0, 1, 2]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numerals.percent(0.7591), "76 %"),
        (numerals.percent(0.0), "0 %"),
        (numerals.percent(0.002), "< 1 %"),
        (numerals.percent(0.9999), "> 99 %"),
        (numerals.percent(1.0), "100 %"),
        (numerals.percent(None), "\u2013"),
        (numerals.whole(8808448), "8 808 448"),
        (numerals.large(8808448), "8.81 M"),
        (numerals.large(999.6), "1 k"),
        (numerals.large(75.51), "75.5"),
        (numerals.large(0), "0"),
        (numerals.seconds(0.01234), "12.3 ms"),
        (numerals.seconds(8.064), "8.06 s"),
        (numerals.seconds(3600.0), "60.0 min"),
        (numerals.seconds(0.0), "0 s"),
        (numerals.gibibytes(67052172800), "62.4 GiB"),
        (numerals.times(3.494), "3.49\u00d7"),
        (numerals.exact(0.0005), "0.0005"),
        (numerals.exact(30000.0), "30 000"),
        (numerals.exact("fp8"), "fp8"),
        (numerals.exact(True), "true"),
    ],
)
def test_numbers_are_written_as_people_read_them(written: str, expected: str) -> None:
    assert written.replace("\u202f", " ") == expected


def test_text_is_escaped_once_and_markup_not_again() -> None:
    inner = tag("b", "a < b", data_v='"')
    assert inner == '<b data-v="&quot;">a &lt; b</b>'
    assert tag("p", inner, "&", None) == f"<p>{inner}&amp;</p>"
    assert join("<", Markup("<i>"), between=" & ") == "&lt; &amp; <i>"


def test_attributes_that_are_off_are_left_out() -> None:
    assert tag("p", hidden=True, id=None, class_=None, tabindex=0) == '<p hidden tabindex="0"></p>'
    assert tag("br") == "<br>"


def test_coordinates_have_one_decimal_at_most() -> None:
    assert [short(value) for value in (1.0, 1.25, 1.04, -0.04)] == ["1", "1.2", "1", "0"]


def test_level_stretches_of_a_line_need_two_points() -> None:
    assert svg.straight([(0, 1), (1, 1), (2, 1), (3, 4)]) == [(0, 1), (2, 1), (3, 4)]


@given(st.text(max_size=60), st.integers(min_value=3, max_value=40))
def test_a_cut_name_fits_and_keeps_both_ends(name: str, length: int) -> None:
    cut = svg.cut(name, length)
    assert len(cut) <= length
    assert cut == name or (cut[0] == name[0] and cut[-1] == name[-1])


def test_units_are_read_off_names() -> None:
    assert unit_of("prefill_tokens_per_s") == "tokens/s"
    assert unit_of("decode_base_s") == "s"
    assert unit_of("prefill_efficiency") == ""
