"""Loads: lanes take sessions in turn, open loops keep the recorded times, bad lanes are refused."""

from __future__ import annotations

import pytest

from replays import BLOCK, session
from twinpool.errors import ConfigError
from twinpool.replay.load import ClosedLoad, LaneStart, OpenLoad, StepLoad, Turns, seeded_starts
from twinpool.traces.schema import Trace

TURNS = Turns(unit_tokens=BLOCK)


def trace(*names: str, has_times: bool = False) -> Trace:
    sessions = tuple(
        session(name, [(20, 3), (50, 3)], start_s=5.0 * at) for at, name in enumerate(names)
    )
    return Trace(name="t", format="made", sessions=sessions, has_times=has_times)


def sent(load: ClosedLoad, answer_s: float = 1.0) -> list[tuple[float, str, int]]:
    """Answer every request after `answer_s`, one after the other."""
    seen = []
    while (when := load.next_s(0)) is not None:
        ticket = load.take()
        seen.append((when, ticket.session, ticket.turn))
        load.done(ticket, when + answer_s)
    return seen


def test_a_lane_goes_on_with_the_next_session() -> None:
    load = ClosedLoad(trace("a", "b"), TURNS, [LaneStart("a", 0)])
    # One second of answer, one of thought before a second turn, none before a first one.
    assert sent(load) == [(0.0, "a", 0), (2.0, "a", 1), (3.0, "b", 0), (5.0, "b", 1)]


def test_lanes_never_share_a_session() -> None:
    load = ClosedLoad(trace("a", "b", "c"), TURNS, [LaneStart("a", 1), LaneStart("b", 0)])
    seen = [(name, turn) for _, name, turn in sent(load)]
    assert sorted(seen) == [("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1)]


def test_an_endless_load_starts_over() -> None:
    load = ClosedLoad(trace("a"), TURNS, [LaneStart("a", 0)], is_endless=True)
    names = []
    for _ in range(5):
        when = load.next_s(0)
        assert when is not None
        ticket = load.take()
        names.append(ticket.turn)
        load.done(ticket, when + 1)
    assert names == [0, 1, 0, 1, 0]


def test_think_times_are_capped() -> None:
    capped = Turns(unit_tokens=BLOCK, gap_cap_s=0.25)
    load = ClosedLoad(trace("a"), capped, [LaneStart("a", 0)])
    assert [when for when, _, _ in sent(load)] == [0.0, 1.25]


def test_an_open_loop_keeps_the_times_of_the_trace() -> None:
    load = OpenLoad(trace("a", "b", has_times=True), TURNS)
    seen = []
    while (when := load.next_s(0)) is not None:
        seen.append((when, load.take().session))
    assert seen == [(0.0, "a"), (5.0, "b"), (10.0, "a"), (15.0, "b")]


def test_an_open_loop_needs_times() -> None:
    with pytest.raises(ConfigError, match="without a common clock") as caught:
        OpenLoad(trace("a"), TURNS)
    assert "--lanes" in caught.value.hint


def test_steps_need_to_be_recorded() -> None:
    with pytest.raises(ConfigError, match="has no step"):
        StepLoad(trace("a"), TURNS)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([], "needs lanes"),
        ([LaneStart("z", 0)], "'z', which is not in the trace"),
        ([LaneStart("a", 2)], "turn 2 of a, which has 2 turns"),
    ],
)
def test_lanes_that_cannot_start_are_refused(starts: list[LaneStart], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClosedLoad(trace("a"), TURNS, starts)


def test_a_seed_decides_sessions_and_first_turns() -> None:
    pool = trace(*"abcdefgh")
    assert seeded_starts(pool, 4, 7) == seeded_starts(pool, 4, 7)
    assert seeded_starts(pool, 4, 7) != seeded_starts(pool, 4, 8)
    assert len({start.session for start in seeded_starts(pool, 8, 1)}) == 8
    with pytest.raises(ConfigError, match="9 lanes need as many sessions, and the trace has 8"):
        seeded_starts(pool, 9, 1)
