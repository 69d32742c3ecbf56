"""Replays: nothing is lost, time goes forward, jumps change nothing, runs repeat byte for byte."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replays import BLOCK, random_trace, replay, session
from twinpool.replay.driver import Driver
from twinpool.replay.load import LaneStart
from twinpool.replay.summary import reusable_tokens
from twinpool.traces.schema import Session, Trace, Turn

STRATEGIES = st.sampled_from(["direct", "extra_buffer", "extra_buffer_lazy", "no_buffer"])
SEEDS = st.integers(0, 10_000)
FLAGS = st.fixed_dictionaries(
    {
        "mamba_radix_cache_strategy": STRATEGIES,
        "schedule_policy": st.sampled_from(["fcfs", "lpm"]),
        "radix_eviction_policy": st.sampled_from(["lru", "joint-lru"]),
        "chunked_prefill_size": st.sampled_from([-1, 16, 48]),
    }
)


@given(
    seed=SEEDS,
    flags=FLAGS,
    rows=st.sampled_from([512, 1024, 8192]),
    slots=st.sampled_from([5, 9, 40]),
    answers=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_every_request_ends_once_and_time_goes_forward(
    seed: int, flags: dict[str, Any], rows: int, slots: int, answers: bool
) -> None:
    trace = random_trace(seed)
    sent = sum(len(session.turns) for session in trace.sessions)
    found = replay(
        trace, rows=rows, slots=slots, turns={"recorded_answers": answers}, max_running=3, **flags
    )
    served = found.tally.served
    assert len(served) + len(found.tally.refused) == sent
    assert len({request.index for request in served}) == len(served)
    for request in served:
        assert request.arrival_s <= request.admitted_s <= request.first_token_s
        least = (request.output_tokens - 1) * 0.011
        assert request.finished_s - request.first_token_s >= least - 1e-9
        assert 0 <= request.cached_tokens < request.input_tokens
        assert request.cached_tokens + request.missed_tokens <= request.input_tokens
    assert found.summary.retractions == found.snapshot.retractions
    if not found.summary.retractions:
        cached = found.summary.cached_tokens
        assert cached + found.tally.prefill_tokens == found.summary.prompt_tokens
    assert found.summary.cached_tokens <= found.summary.reusable_tokens
    assert found.snapshot.num_running == found.snapshot.num_waiting == 0


@given(seed=SEEDS, flags=FLAGS)
@settings(max_examples=15, deadline=None)
def test_jumping_over_steps_changes_nothing(seed: int, flags: dict[str, Any]) -> None:
    trace = random_trace(seed)

    def run(lines: list[bytes]) -> Any:
        return replay(trace, rows=1024, slots=9, max_running=3, decisions=lines.append, **flags)

    jumped, stepped = [], []
    fast = run(jumped)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Driver, "max_jump_tokens", 1)
        slow = run(stepped)
    assert jumped == stepped
    for a, b in zip(fast.tally.served, slow.tally.served, strict=True):
        assert a.index == b.index
        assert a.finished_s == pytest.approx(b.finished_s)
        assert a.first_token_s == pytest.approx(b.first_token_s)


@given(seed=SEEDS, flags=FLAGS)
@settings(max_examples=15, deadline=None)
def test_two_runs_are_the_same_byte_for_byte(seed: int, flags: dict[str, Any]) -> None:
    logs: list[list[bytes]] = [[], []]
    outcomes = [
        replay(random_trace(seed), rows=1024, slots=9, max_running=3, decisions=log.append, **flags)
        for log in logs
    ]
    assert logs[0] == logs[1]
    assert outcomes[0].summary == outcomes[1].summary


@given(seed=SEEDS, think=st.sampled_from([None, 0.0, 0.4]))
@settings(max_examples=15, deadline=None)
def test_a_lane_thinks_and_sends_its_next_turn(seed: int, think: float | None) -> None:
    trace = random_trace(seed, has_times=False)
    lanes = [LaneStart(session.name, 0) for session in trace.sessions[:2]]
    found = replay(trace, lanes=lanes, turns={"gap_cap_s": think})
    assert len(found.tally.served) == sum(len(session.turns) for session in trace.sessions)
    by_name = {session.name: session for session in trace.sessions}
    ends: dict[tuple[str, int], float] = {}
    for request in found.tally.served:
        ends[request.session, request.turn] = request.finished_s
    for request in found.tally.served:
        before = ends.get((request.session, request.turn - 1))
        if before is not None:
            think_s = by_name[request.session].turns[request.turn].think_s
            capped = think_s if think is None else min(think_s, think)
            assert request.arrival_s == pytest.approx(before + capped)


@given(seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_without_limits_all_that_can_be_reused_is(seed: int) -> None:
    trace = random_trace(seed, has_times=False, rewrites=False)
    lanes = [LaneStart(trace.sessions[0].name, 0)]
    found = replay(trace, lanes=lanes, rows=10**6, slots=1000, turns={"recorded_answers": True})
    # One request at a time, so nothing is in flight that another could have shared. A prompt that
    # ends on a block leaves its checkpoint one block earlier: its last token is always computed.
    # So does an answer that ends in the block in which it began.
    lost = reusable_tokens(found.tally.served)
    for request, reusable in zip(found.tally.served, lost, strict=True):
        assert reusable - 2 * BLOCK <= request.cached_tokens <= reusable


def test_what_a_request_left_that_was_cut_short_could_be_reused() -> None:
    # The first answers for long; another session of the same namespace asks the same meanwhile.
    slow, quick = (
        dataclasses.replace(
            session(name, [(10 * BLOCK + 1, answer)], start_s=start_s), namespace="both"
        )
        for name, answer, start_s in (("slow", 1_000, 0.0), ("quick", 2, 3.0))
    )
    trace = Trace(name="t", format="made", sessions=(slow, quick), has_times=True)
    found = replay(trace, setup={"duration_s": 5.0})
    assert [request.session for request in found.tally.cut_short] == ["slow"]
    (served,) = found.tally.served
    assert served.cached_tokens == found.summary.reusable_tokens == 10 * BLOCK
    assert found.summary.prompt_tokens == served.input_tokens


@given(seed=SEEDS, parts=st.sampled_from([2, 4, 16]))
@settings(max_examples=12, deadline=None)
def test_finer_units_find_the_same_whole_blocks(seed: int, parts: int) -> None:
    trace = random_trace(seed, has_times=False)
    lanes = [LaneStart(trace.sessions[0].name, 0)]
    coarse = replay(trace, lanes=lanes, rows=10**6, slots=1000)
    fine = replay(trace, lanes=lanes, rows=10**6, slots=1000, unit=BLOCK // parts)
    for a, b in zip(coarse.tally.served, fine.tally.served, strict=True):
        assert (a.session, a.turn) == (b.session, b.turn)
        # The last token is always computed; a finer unit loses less before it.
        assert 0 <= b.cached_tokens - a.cached_tokens < BLOCK


@given(
    seed=SEEDS,
    unit=st.sampled_from([2, 4, 8, BLOCK]),
    has_partial_ids=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_with_room_for_all_the_next_turn_reuses_all_that_the_trace_shares(
    seed: int, unit: int, has_partial_ids: bool
) -> None:
    draw = random.Random(seed)
    sessions = []
    for number in range(3):
        turns, length = [], 0
        for turn in range(4):
            length += draw.randint(1, 70)
            blocks = list(range(length // BLOCK))
            if has_partial_ids and length % BLOCK:
                blocks.append(1000 + turn)
            turns.append(
                Turn(
                    start_s=100.0 * turn,
                    think_s=100.0,
                    blocks=np.array(blocks, dtype=np.int32),
                    input_tokens=length,
                    output_tokens=draw.randint(1, 40),
                )
            )
        name = f"s{number}"
        sessions.append(
            Session(name=name, block_tokens=BLOCK, turns=tuple(turns), start_s=0.0, namespace=name)
        )
    trace = Trace(name="t", format="made", sessions=tuple(sessions), has_times=True)
    found = replay(trace, unit=unit, rows=16_384, slots=200)
    earlier = {
        (session.name, number): turn.input_tokens
        for session in sessions
        for number, turn in enumerate(session.turns, start=1)
    }
    for request in found.tally.served:
        before = earlier.get((request.session, request.turn), 0)
        # The last token is always computed, and with it its unit.
        shared = min(before // BLOCK * BLOCK, (request.input_tokens - 1) // unit * unit)
        # A prompt that ends with a block leaves its checkpoint a unit before: what a repeat needs.
        left = min(shared, max(before - 1, 0) // unit * unit)
        assert left <= request.cached_tokens <= shared
