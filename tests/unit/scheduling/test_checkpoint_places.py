"""Where checkpoints are left, by strategy: exact places of `direct`, grids of the others."""

from __future__ import annotations

import pytest

from simulation import Rig, make_rig


def places(rig: Rig) -> list[int]:
    return sorted(n.depth for n in rig.scheduler.cache.tree.nodes() if n.has_checkpoint)


def test_boundaries_prompt_end_and_finish_of_direct():
    rig = make_rig(chunk_tokens=40)
    rig.one(range(100), max_tokens=10, boundaries=(30, 77))
    assert places(rig) == [30, 77, 99, 109]


def test_places_floor_to_pages():
    rig = make_rig(page_size=16, chunk_tokens=64)
    rig.one(range(100), max_tokens=30, boundaries=(30, 77))
    # The finish falls inside a page: the last page boundary of the decode is kept.
    assert places(rig) == [16, 64, 96, 128]
    again = rig.one(range(100), max_tokens=1)
    assert rig.cached[again] == 96


def test_the_next_turn_of_a_short_answer_inside_a_page_computes_no_old_page_again():
    rig = make_rig(page_size=4, chunk_tokens=512, track_interval=4)
    first = rig.one(range(8), max_tokens=3)
    turn = rig.one([*range(8), *rig.outputs[first][:2], 90, 91], max_tokens=1)
    assert rig.cached[turn] == 8


@pytest.mark.parametrize("chunk_tokens", [64, 256, 512])
def test_a_long_prefill_keeps_one_periodic_checkpoint_while_it_runs_and_none_after(chunk_tokens):
    rig = make_rig(chunk_tokens=chunk_tokens)
    rig.add(range(2000), max_tokens=4)
    seen = set()
    while not rig.outputs[0]:
        rig.step()
        assert len(places(rig)) <= 1 or rig.outputs[0]
        seen |= set(places(rig))
    assert {256 * n for n in range(1, 4)} <= seen or chunk_tokens == 512
    rig.run()
    # The last one that was due stays until a deeper periodic one replaces it.
    assert places(rig)[-2:] == [1999, 2003]
    assert len(places(rig)) <= 3


def test_a_long_decode_is_left_a_checkpoint_every_interval_and_the_last_one_stays():
    rig = make_rig(track_interval=32)
    rig.add([1] * 20, max_tokens=150)
    while rig.scheduler.has_work:
        rig.step()
        decode = [place for place in places(rig) if place > 20]
        assert len(decode) <= 2
    assert places(rig) == [19, 160, 169]


def test_periodic_checkpoints_never_evict():
    rig = make_rig(num_slots=4, chunk_tokens=64, track_interval=64)
    for number in range(3):
        rig.one([1000 + number] * 10, max_tokens=1)
    rig.add(range(1000), max_tokens=100)
    evicted = rig.scheduler.cache.evictor.evicted_slots
    # Admission takes one slot, and so does the end of the prompt; nothing in between does.
    taken = []
    while rig.scheduler.has_work:
        before = evicted["slots"]
        plan = rig.step()
        if evicted["slots"] > before:
            taken.append(plan.lanes[0].start)
    assert taken[0] == 0
    assert all(depth in (0, 960) for depth in taken)


@pytest.mark.parametrize("policy", ["lru", "joint-lru"])
def test_a_periodic_checkpoint_goes_before_older_ones_that_were_asked_for(policy):
    rig = make_rig(num_slots=5, track_interval=32, policy=policy)
    rig.one([7] * 10, max_tokens=1)
    rig.add([1] * 20, max_tokens=100)
    while 32 not in places(rig):
        rig.step()
    assert places(rig) == [9, 10, 19, 32]
    # A prompt of one token needs a working state and nothing else.
    rig.add([5], max_tokens=2)
    rig.step()
    assert places(rig) == [9, 10, 19]
    rig.run()


def test_the_only_slot_is_claimed_from_the_tree_when_its_own_checkpoint_holds_it():
    rig = make_rig(num_slots=1, max_running=1)
    first = rig.one(range(50), max_tokens=5)
    assert places(rig) == [54]
    turn = [*range(50), *rig.outputs[first][:4], 200, 201]
    rig.add(turn, max_tokens=5)
    plan = rig.step()
    # No copy is needed: the checkpoint itself has become the working state.
    assert plan.actions == ()
    assert plan.lanes[0].start == 54
    rig.run(deep=True)
    assert rig.cached[1] == 54


def test_without_a_free_slot_a_request_goes_on_without_checkpoints_and_they_are_counted():
    rig = make_rig(num_slots=2, max_running=2)
    for number in range(2):
        rig.add([number] * 50, max_tokens=30)
    rig.run()
    assert rig.scheduler.snapshot().skipped_checkpoints > 0
    assert sum(b'"skipped"' in line for line in rig.lines) > 0
    assert len(rig.ended) == 2


@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy"])
def test_buffered_strategies_leave_checkpoints_on_their_grids(strategy):
    rig = make_rig(
        strategy=strategy, chunk_tokens=100, chunk_grid=16, track_interval=32, max_running=1
    )
    rig.one(range(250), max_tokens=50)
    # One per chunk, on the grid counted from the chunk's start, and one of the decode at the end.
    assert places(rig) == [96, 196, 248, 288]
    assert rig.cached[rig.one(range(250), max_tokens=1)] == 248


def test_a_buffered_strategy_snapshots_a_branch_instead_of_the_chunks_end():
    rig = make_rig(strategy="extra_buffer", chunk_tokens=512, chunk_grid=16)
    rig.one(range(200), max_tokens=1)
    assert places(rig) == [192]
    rig.one([*range(100), *range(1000, 1100)], max_tokens=1)
    assert places(rig) == [96, 192]
    third = rig.one([*range(100), *range(2000, 2100)], max_tokens=1)
    assert rig.cached[third] == 96


def test_no_buffer_copies_each_chunk_end_and_donates_the_working_state():
    rig = make_rig(strategy="no_buffer", chunk_tokens=100)
    rig.one(range(250), max_tokens=10)
    assert places(rig) == [100, 200, 250, 259]


@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy", "no_buffer"])
def test_reference_strategies_keep_the_match_locked_while_they_run(strategy):
    rig = make_rig(strategy=strategy, chunk_grid=16)
    rig.one(range(100), max_tokens=40)
    rig.add([*range(100), 7, 8], max_tokens=10)
    locked = []
    while rig.scheduler.has_work:
        rig.step()
        locked.append(rig.scheduler.cache.tree.locks.num_checkpoints)
    assert locked == [1] * (len(locked) - 1) + [0]


def test_direct_lets_go_of_the_match_after_the_first_step():
    rig = make_rig()
    rig.one(range(100), max_tokens=4)
    rig.add(range(100), max_tokens=10)
    rig.step()
    assert rig.scheduler.cache.tree.locks.num_checkpoints == 0
    rig.run()


def test_slots_held_while_running_are_those_of_the_strategy():
    for strategy, held in {
        "direct": 1,
        "no_buffer": 1,
        "extra_buffer_lazy": 2,
        "extra_buffer": 3,
    }.items():
        rig = make_rig(strategy=strategy, max_running=1, num_rows=200)
        rig.add([1] * 20, max_tokens=8)
        rig.step()
        assert rig.scheduler.snapshot().state.working == held
        rig.run()
