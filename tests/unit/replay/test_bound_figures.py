"""The bound on cases whose best history is known by hand, and what it refuses."""

from __future__ import annotations

import pytest

from served import served
from twinpool.errors import CapacityError, ConfigError
from twinpool.replay.bound import ByteBudget, hit_bound


def turn_about(num_prompts: int, rounds: int, length: int = 10):
    """Prompts that take turns: each is sent again after all the others."""
    return [
        served([number] * length, (at, at + 1, at + 2), unit_tokens=64)
        for at, number in enumerate(list(range(num_prompts)) * rounds)
    ]


def spaced(num_prompts: int, rounds: int, length: int = 10):
    """The same, one after the other with time between."""
    return [
        served([number] * length, (10 * at, 10 * at + 1, 10 * at + 2), unit_tokens=64)
        for at, number in enumerate(list(range(num_prompts)) * rounds)
    ]


def test_nothing_served_gives_a_rate_of_zero():
    bound = hit_bound([], capacity_units=10, state_slots=2)
    assert (bound.hit_tokens, bound.prompt_tokens, bound.hit_rate) == (0, 0, 0.0)
    assert bound.is_exact


def test_bound_is_strictly_below_the_infinite_rate_where_units_are_short():
    trace = spaced(4, 2)
    everything = hit_bound(trace)
    assert everything.hit_rate == 0.5
    # While one runs, 15 units of the other three can stay; four gaps overlap like that.
    bound = hit_bound(trace, capacity_units=25, state_slots=10)
    assert bound.is_exact
    assert 0 < bound.hit_rate < everything.hit_rate
    assert bound.hit_tokens == 25 * 64


def test_bound_is_strictly_below_the_infinite_rate_where_slots_are_short():
    trace = spaced(4, 2)
    # Three slots: a working state and two checkpoints; all four gaps overlap.
    bound = hit_bound(trace, capacity_units=1000, state_slots=3)
    assert bound.hit_tokens == 2 * 640
    assert hit_bound(trace, capacity_units=1000, state_slots=1).hit_tokens == 0
    assert hit_bound(trace, capacity_units=1000).hit_rate == 0.5


def test_one_budget_reaches_what_neither_split_of_the_same_bytes_does():
    # A long prompt that returns, while nothing else does; then short ones that all return.
    long = [
        served([9] * 40, (0, 1, 2), unit_tokens=64),
        served([9] * 40, (10, 11, 12), unit_tokens=64),
    ]
    short = [
        served([n], (100 + 10 * at, 101 + 10 * at, 102 + 10 * at), unit_tokens=64)
        for at, n in enumerate([0, 1, 2, 3, 4, 5] * 2)
    ]
    total, slot = 42, 1
    whole = hit_bound(long + short, one_budget=(total, 1, slot))
    assert whole.kind == "one-budget"
    assert whole.hit_tokens == hit_bound(long + short).hit_tokens
    assert hit_bound(long + short, capacity_units=40, state_slots=2).hit_tokens < whole.hit_tokens


def test_prompts_that_follow_each_other_without_a_pause_are_bounded_as_well():
    bound = hit_bound(turn_about(4, 3), capacity_units=40, state_slots=6)
    assert bound.hit_tokens == hit_bound(turn_about(4, 3)).hit_tokens


def test_coarse_rows_say_that_they_are_coarse():
    trace = spaced(12, 6)
    exact = hit_bound(trace, capacity_units=40, state_slots=4)
    coarse = hit_bound(trace, capacity_units=40, state_slots=4, max_rows=2)
    assert exact.is_exact
    assert not coarse.is_exact
    assert coarse.num_rows <= 2
    assert coarse.hit_tokens > exact.hit_tokens


def test_coarse_rows_of_no_memory_at_all_say_that_they_are_coarse():
    trace = [served([0], (0, 1, 1)), served([0], (2, 3, 3))]
    exact = hit_bound(trace, capacity_units=0, state_slots=1)
    coarse = hit_bound(trace, capacity_units=0, state_slots=1, max_rows=1)
    assert (exact.hit_tokens, exact.is_exact) == (0, True)
    assert coarse.is_exact == (coarse.hit_tokens == 0)


def test_what_was_cut_off_leaves_prefixes_and_holds_memory_but_is_not_counted():
    cut_off = served([1, 2, 3], (0, 50, 50), unit_tokens=64)
    other = served([1, 2, 9], (10, 11, 12), unit_tokens=64)
    bound = hit_bound([other], unfinished=[cut_off], capacity_units=10, state_slots=3)
    assert (bound.hit_tokens, bound.prompt_tokens) == (128, 192)
    assert hit_bound([other], capacity_units=10).hit_tokens == 0
    assert hit_bound([], unfinished=[other, cut_off]).prompt_tokens == 0
    with pytest.raises(CapacityError, match="hold 2 of 1 state slots"):
        hit_bound([other], unfinished=[cut_off], state_slots=1)


def test_order_of_the_records_does_not_matter():
    trace = spaced(5, 3)
    limits = {"capacity_units": 27, "state_slots": 3}
    assert hit_bound(trace[::-1], **limits) == hit_bound(trace, **limits)


def test_running_requests_that_do_not_fit_are_an_error_with_numbers():
    with pytest.raises(CapacityError, match=r"at 1\.000 s .* hold 10 of 9 units of KV"):
        hit_bound(turn_about(1, 1), capacity_units=9)
    with pytest.raises(CapacityError, match="hold 1 of 0 state slots"):
        hit_bound(turn_about(1, 1), capacity_units=10, state_slots=0)
    with pytest.raises(CapacityError, match="hold 1050 of 1000 bytes"):
        hit_bound(turn_about(1, 1), one_budget=ByteBudget(1000, 100, 50))


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"capacity_units": 10, "one_budget": (10, 1, 1)}, "at once"),
        ({"capacity_units": -1}, "-1 units of KV"),
        ({"state_slots": -1}, "-1 state slots"),
        ({"one_budget": (10, 0, 1)}, "0 per unit"),
        ({"capacity_units": 10, "max_rows": 0}, "max_rows is 0"),
    ],
)
def test_limits_out_of_range_are_refused(limits, text):
    with pytest.raises(ConfigError, match=text):
        hit_bound([], **limits)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (served([1], (5, 4, 6)), "at 5, 4 and 6 s"),
        (served([1], (5, 6, 5)), "at 5, 6 and 5 s"),
        (served([1], (5, 6, 7), unit_tokens=2), "units of 2 tokens, another has 1"),
        (served([1], (5, 6, 7), prompt=2), "2 units of prompt in a path of 1"),
        (served([1], (5, 6, 7), input_tokens=-1), "-1 input tokens"),
    ],
)
def test_records_that_contradict_themselves_are_refused(record, text):
    with pytest.raises(ConfigError, match=text):
        hit_bound([served([1], (0, 1, 2)), record], capacity_units=100)
