"""Snapshot rules: slots held and grids of each strategy, and settings that do not go together."""

from __future__ import annotations

import pytest

from twinpool.errors import ConfigError
from twinpool.memory.running_cap import REFERENCE_STRATEGIES, SlotStrategy
from twinpool.memory.snapshots import AnswerReserve, snapshot_rules


def test_direct_holds_one_slot_and_places_checkpoints_exactly():
    rules = snapshot_rules("direct")
    assert (rules.slots_per_request, rules.num_tracked) == (1, 0)
    assert rules.has_exact_places
    assert rules.donates_working
    assert not rules.keeps_match_locked
    assert rules.grid_snapshot(0, 4096, 0) is None
    assert rules.decode_grid == 256


@pytest.mark.parametrize(
    ("strategy", "overlap", "slots", "tracked"),
    [
        ("extra_buffer", True, 5, 2),
        ("extra_buffer", False, 4, 1),
        ("extra_buffer_lazy", True, 4, 1),
        ("no_buffer", True, 3, 0),
        ("no_buffer", False, 3, 0),
        ("direct", False, 1, 0),
    ],
)
def test_slots_of_a_running_request(strategy, overlap, slots, tracked):
    rules = snapshot_rules(strategy, has_overlap=overlap)
    assert (rules.slots_per_request, rules.num_tracked) == (slots, tracked)


@pytest.mark.parametrize("strategy", SlotStrategy)
def test_cache_off_is_one_slot_and_no_checkpoints_whatever_the_strategy(strategy):
    rules = snapshot_rules(strategy, is_cache_enabled=False)
    assert (rules.name, rules.slots_per_request, rules.num_tracked) == ("off", 1, 0)
    assert not rules.has_exact_places
    assert not rules.copies_chunk_end
    assert not rules.donates_working
    assert (rules.prefill_grid, rules.decode_grid) == (0, 0)


@pytest.mark.parametrize(
    ("start", "end", "branch", "depth"),
    [
        # One snapshot, at the last multiple of the grid counted from the chunk's start.
        (0, 63, 0, None),
        (0, 64, 0, 64),
        (0, 200, 0, 192),
        (30, 200, 0, 158),
        # A branch inside the chunk takes its place, snapped down to the grid.
        (0, 200, 100, 64),
        (0, 200, 64, 64),
        (0, 200, 200, 192),
        # Not before the chunk, not at its start, not off the grid counted from there.
        (64, 200, 64, 192),
        (30, 200, 128, 158),
    ],
)
def test_prefill_grid_of_the_reference_engine(start, end, branch, depth):
    assert snapshot_rules("extra_buffer").grid_snapshot(start, end, branch) == depth


def test_decode_grid_is_a_multiple_of_chunk_page_and_interval():
    rules = snapshot_rules("extra_buffer", page_size=64, track_interval=192, chunk_grid=128)
    assert rules.prefill_grid == 128
    assert rules.decode_grid == 384


def test_direct_tracks_each_page_when_the_end_may_fall_inside_one():
    assert snapshot_rules("direct", page_size=16).decode_grid == 16


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"strategy": "extra"}, "extra"),
        ({"strategy": "no_buffer", "page_size": 2}, "no_buffer"),
        ({"strategy": "direct", "track_interval": 100, "page_size": 64}, "100"),
        ({"strategy": "direct", "track_interval": 0}, "0"),
        ({"strategy": "extra_buffer_lazy", "has_overlap": False}, "overlap"),
    ],
)
def test_what_does_not_go_together_is_refused(fields, named):
    with pytest.raises(ConfigError, match=named):
        snapshot_rules(**fields)


@pytest.mark.parametrize(
    ("strategy", "at_prompt_end", "donates"), [("align", True, False), ("marconi", False, True)]
)
def test_strategies_of_other_engines_leave_forks_and_one_end(strategy, at_prompt_end, donates):
    # A block may be longer than the track interval: nothing is tracked in decode.
    rules = snapshot_rules(strategy, page_size=528)
    assert (rules.slots_per_request, rules.num_tracked, rules.decode_grid) == (1, 0, 0)
    assert rules.has_exact_places
    assert (rules.at_prompt_end, rules.donates_working) == (at_prompt_end, donates)
    assert not rules.at_boundaries
    assert not rules.heeds_others
    assert not rules.is_reference


@pytest.mark.parametrize("strategy", SlotStrategy)
def test_only_strategies_of_the_reference_engine_bring_its_other_rules(strategy):
    rules = snapshot_rules(strategy)
    is_reference = strategy in REFERENCE_STRATEGIES
    assert rules.is_reference == is_reference
    assert (rules.reserve is AnswerReserve.WHOLE) == is_reference
    assert rules.keeps_match_locked == is_reference
