"""The statistics of small traces, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import ConfigError
from twinpool.traces.arrivals import arrivals
from twinpool.traces.lru_stack import LruCurve, LruStack
from twinpool.traces.numbering import PrefixNumbering
from twinpool.traces.schema import Session, Trace, Turn
from twinpool.traces.selection import select
from twinpool.traces.statistics import Spread, statistics


def turn(at: float, blocks: list[int], *, tokens: int | None = None, **fields: object) -> Turn:
    return Turn(
        start_s=at,
        think_s=fields.pop("think", 0.0),  # type: ignore[arg-type]
        blocks=np.array(blocks, dtype=np.int32),
        input_tokens=10 * len(blocks) if tokens is None else tokens,
        output_tokens=1,
        **fields,  # type: ignore[arg-type]
    )


def session(name: str, *turns: Turn, at: float = 0.0, **fields: object) -> Session:
    return Session(name=name, block_tokens=10, turns=turns, start_s=at, **fields)  # type: ignore[arg-type]


def trace(*sessions: Session, has_times: bool = True) -> Trace:
    return Trace(name="t", format="x", sessions=sessions, has_times=has_times)


def test_hits_are_leading_blocks_and_never_more_than_the_prompt() -> None:
    figures = statistics(
        trace(
            session("a", turn(0, [1, 2, 3], tokens=25), turn(1, [1, 2, 3], tokens=25)),
            session("b", turn(0, [1, 9, 3], tokens=30), at=2.0),
        )
    )
    assert (figures.reused_tokens, figures.input_tokens) == (25 + 10, 80)
    assert figures.hit_rate == figures.lru_hit_rate(10**9) == 35 / 80
    assert figures.lru_block_hit_rate(10**9) == 40 / 80
    assert figures.unique_tokens == 50


def test_namespaces_share_nothing() -> None:
    figures = statistics(
        trace(
            session("a", turn(0, [1, 2]), namespace="a"),
            session("b", turn(0, [1, 2]), namespace="b"),
            session("c", turn(0, [1, 2]), namespace="b"),
        )
    )
    assert figures.reused_tokens == 20


def test_requests_arrive_by_time_or_session_after_session() -> None:
    child = session("a/x", turn(0, [3]), turn(5, [3]), at=1.5)
    family = session("a", turn(0, [1]), turn(3, [2]), children=(child,), at=10.0)
    other = session("b", turn(0, [4]), at=2.0)
    timed = arrivals(trace(family, other))
    assert [(each.at_s, each.session.name, each.index) for each in timed] == [
        (2.0, "b", 0),
        (10.0, "a", 0),
        (11.5, "a/x", 0),
        (13.0, "a", 1),
        (16.5, "a/x", 1),
    ]
    untimed = [each.session.name for each in arrivals(trace(family, other, has_times=False))]
    assert untimed == ["a", "a/x", "a", "a/x", "b"]
    assert timed[3].turn.blocks.tolist() == [2]


def test_sessions_are_measured_by_their_own_turns() -> None:
    child = session("a/x", turn(0, [7, 8, 9]))
    figures = statistics(
        trace(
            session("a", turn(0, [1]), turn(4, [1, 2], think=3.0), children=(child,)),
            session("b", turn(0, [5]), turn(9, [5], think=8.0, is_think_recorded=False)),
        )
    )
    assert (figures.num_sessions, figures.num_children, figures.num_requests) == (2, 1, 5)
    assert figures.turns == Spread(2.0, 2.0, 2.0)
    assert figures.context_tokens.most == 20
    assert figures.prompt_tokens.most == 30
    assert figures.gap_s == Spread(6.5, 8.5, 9.0)
    assert figures.think_s == Spread(3.0, 3.0, 3.0)
    assert figures.duration_s == 9.0


@pytest.mark.parametrize(
    ("after", "rewritten"),
    [(list(range(10)), 0), (list(range(9)), 0), ([*range(8), 99], 1), ([], 1)],
)
def test_a_context_is_rewritten_when_more_than_a_tenth_is_lost(
    after: list[int], rewritten: int
) -> None:
    figures = statistics(trace(session("a", turn(0, list(range(10))), turn(1, after))))
    assert (figures.num_rewritten, figures.num_pairs) == (rewritten, 1)


def test_nothing_has_figures_too() -> None:
    for empty in (trace(), trace(session("a"))):
        figures = statistics(empty)
        assert (figures.num_requests, figures.hit_rate, figures.think_s) == (0, 0.0, None)
        assert figures.lru.hit_tokens(10**9) == 0


def test_a_cache_of_the_distance_and_one_has_the_block() -> None:
    stack = LruStack(4)
    assert stack.access("", [(0, 3)], 0) == []
    assert stack.access("", [(0, 1), (3, 2)], 1) == [(1, 2)]
    # Above 1 and 2 of the first request lie 3, 4 and 0, which is accessed before them.
    assert stack.access("", [(0, 3)], 3) == [(1, 2), (2, 4)]
    assert stack.access("other", [(0, 1)], 0) == []


def test_a_curve_rises_at_its_capacities_in_whole_blocks() -> None:
    curve = LruCurve([(3, 2, 20), (1, 1, 5), (3, 1, 1)], block_tokens=10)
    assert [curve.hit_tokens(tokens) for tokens in (0, 9, 10, 29, 30, 31)] == [0, 0, 5, 5, 26, 26]
    assert [curve.hit_blocks(tokens) for tokens in (0, 9, 10, 29, 30, 31)] == [0, 0, 1, 1, 4, 4]
    assert curve.enough_tokens == 30


def test_numbers_go_on_in_place_and_after_forks() -> None:
    numbering = PrefixNumbering()
    assert numbering.add(np.array([5, 6])) == ([(0, 2)], 0)
    assert numbering.add(np.array([5, 6, 7])) == ([(0, 3)], 2)
    assert numbering.add(np.array([5, 9])) == ([(0, 1), (3, 1)], 1)
    assert numbering.add(np.array([5, 6, 8])) == ([(0, 2), (4, 1)], 2)
    assert numbering.add(np.array([5, 6, 7, 5])) == ([(0, 3), (5, 1)], 3)
    assert numbering.add(np.array([], dtype=np.int64)) == ([], 0)
    assert numbering.num_blocks == 6


def test_a_part_of_a_trace_keeps_what_had_begun() -> None:
    early, late = session("a/x", turn(0, [7]), at=1.0), session("a/y", turn(0, [7]), at=5.0)
    whole = trace(
        session("z", turn(0, [1])),
        session("a", *(turn(n, [n]) for n in range(4)), children=(early, late)),
        session("b", turn(0, [1]), turn(1, [1])),
    )
    (kept,) = select(whole, num_sessions=1, min_turns=2, max_turns=2).sessions
    assert (kept.name, len(kept.turns), [child.name for child in kept.children]) == (
        "a",
        2,
        ["a/x"],
    )
    assert select(whole) == whole
    assert not any(each.children for each in select(whole, with_children=False).sessions)
    assert select(whole, min_turns=9).sessions == ()


@pytest.mark.parametrize("bad", [{"num_sessions": 0}, {"min_turns": -1}, {"max_turns": 0}])
def test_a_part_that_cannot_be_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"--\S+ is"):
        select(trace(), **bad)  # type: ignore[arg-type]
