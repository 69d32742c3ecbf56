"""Numbering, LRU curve and hit rate against slow twins, on random traces; files round-trip."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinpool.traces.arrivals import arrivals
from twinpool.traces.numbering import PrefixNumbering, spell_out
from twinpool.traces.own_format import write_trace
from twinpool.traces.own_reader import read_own
from twinpool.traces.schema import Session, Trace, Turn
from twinpool.traces.statistics import statistics

# Few different contents, so that paths meet, part, and meet again at other depths.
PATHS = st.lists(st.integers(0, 2), max_size=9)
SECONDS = st.floats(0, 50, allow_nan=False)


@st.composite
def turns(draw: st.DrawFn, block_tokens: int) -> Turn:
    blocks = draw(PATHS)
    partial = draw(st.integers(0, block_tokens - 1))
    # With an id for a partial last block, or without.
    shorter = partial if blocks and draw(st.booleans()) else 0
    input_tokens = len(blocks) * block_tokens - shorter or partial
    output_tokens = draw(st.integers(0, 12))
    answer = None
    if draw(st.booleans()):
        count = max(0, (input_tokens + output_tokens) // block_tokens - len(blocks))
        answer = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), "i4")
    return Turn(
        start_s=draw(SECONDS),
        think_s=draw(SECONDS),
        blocks=np.array(blocks, dtype=np.int32),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        answer=answer,
        is_think_recorded=draw(st.booleans()),
        step=draw(st.one_of(st.none(), st.integers(0, 99))),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    block_tokens = draw(st.sampled_from([1, 4]))
    count = 0

    def session(depth: int) -> Session:
        nonlocal count
        count += 1
        name = f"s{count}"
        return Session(
            name=name,
            block_tokens=block_tokens,
            turns=tuple(draw(st.lists(turns(block_tokens), max_size=5))),
            start_s=draw(SECONDS),
            namespace=draw(st.sampled_from(["", "n"])),
            children=tuple(session(depth + 1) for _ in range(draw(st.integers(0, 2 - depth)))),
        )

    sessions = tuple(session(0) for _ in range(draw(st.integers(0, 4))))
    return Trace(name="t", format="twinpool", sessions=sessions, has_times=draw(st.booleans()))


def slow_hits(trace: Trace, capacity: int | None) -> int:
    """An LRU list of prefixes, each block with all before it, that is walked block by block."""
    cache: OrderedDict[tuple[str, tuple[int, ...]], None] = OrderedDict()
    hits = 0
    for request in arrivals(trace):
        path = request.turn.blocks.tolist()
        leading, is_prefix = 0, True
        for depth in range(1, len(path) + 1):
            key = (request.session.namespace, tuple(path[:depth]))
            is_prefix = is_prefix and key in cache
            leading += is_prefix
            cache[key] = None
            cache.move_to_end(key)
            if capacity is not None and len(cache) > capacity:
                cache.popitem(last=False)
        hits += min(leading * trace.block_tokens, request.turn.input_tokens)
    return hits


@given(traces())
def test_the_lru_curve_is_what_an_lru_list_hits_at_every_capacity(trace: Trace) -> None:
    curve = statistics(trace).lru
    for capacity in range(40):
        assert curve.hit_tokens(capacity * trace.block_tokens) == slow_hits(trace, capacity)


@given(traces())
def test_the_curve_ends_at_the_hits_of_an_infinite_cache(trace: Trace) -> None:
    figures = statistics(trace)
    assert figures.reused_tokens == slow_hits(trace, None)
    assert figures.lru_hit_rate(10**9) == figures.hit_rate
    assert figures.lru.hit_blocks(10**9) * trace.block_tokens >= figures.reused_tokens
    assert figures.lru.hit_tokens(figures.lru.enough_tokens) == figures.reused_tokens
    assert figures.reused_tokens <= figures.input_tokens


@given(st.lists(PATHS, max_size=12), st.sampled_from([1, 3]))
def test_numbers_are_equal_exactly_where_prefixes_are(paths: list[list[int]], width: int) -> None:
    numbering = PrefixNumbering()
    seen: dict[tuple[int, ...], int] = {}
    for path in paths:
        content = np.repeat(np.array(path, dtype=np.int32)[:, None], width, axis=1)
        runs, known = numbering.add(content if width > 1 else content[:, 0])
        numbers = spell_out(runs).tolist()
        prefixes = [tuple(path[: depth + 1]) for depth in range(len(path))]
        assert known == sum(prefix in seen for prefix in prefixes)
        for prefix in prefixes:
            # New prefixes count up in the order of their appearance.
            seen.setdefault(prefix, len(seen))
        assert numbers == [seen[prefix] for prefix in prefixes]
    assert numbering.num_blocks == len(seen)


@given(traces())
@settings(deadline=None)
def test_a_written_trace_reads_back_with_numbered_prefixes(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, again = Path(folder) / "t.jsonl", Path(folder) / "again.jsonl"
        write_trace(trace, path)
        read = read_own(path)
        write_trace(read, again)
        assert again.read_bytes() == path.read_bytes()
    assert (read.has_times, len(read.sessions)) == (trace.has_times, len(trace.sessions))
    before = [each for session in trace.sessions for each in session.walk()]
    after = [each for session in read.sessions for each in session.walk()]
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    for one, other in zip(before, after, strict=True):
        assert plain(one) == plain(other)
        for turn, numbered in zip(one.turns, other.turns, strict=True):
            check_numbers(one.namespace, turn, numbered, numbers)
    assert len(set(numbers.values())) >= len(numbers) / 2
    if trace.sessions:
        assert statistics(read).reused_tokens == statistics(trace).reused_tokens


def plain(session: Session) -> tuple[object, ...]:
    """Everything but ids, children and block size, which other assertions cover."""
    none = np.empty(0, dtype=np.int32)
    own = [repr(replace(turn, blocks=none, answer=None)) for turn in session.turns]
    shape = [(len(turn.blocks), turn.answer is None) for turn in session.turns]
    return (session.name, session.start_s, session.namespace, len(session.children), own, shape)


def check_numbers(
    namespace: str,
    turn: Turn,
    numbered: Turn,
    numbers: dict[tuple[str, tuple[int, ...]], int],
) -> None:
    path = turn.blocks.tolist() + ([] if turn.answer is None else turn.answer.tolist())
    found = numbered.blocks.tolist()
    found += [] if numbered.answer is None else numbered.answer.tolist()
    assert len(found) == len(path)
    for depth, number in enumerate(found):
        key = (namespace, tuple(path[: depth + 1]))
        assert numbers.setdefault(key, number) == number
    owners = [key for key, number in numbers.items() if key[0] == namespace and number in found]
    assert len({numbers[key] for key in owners}) == len(owners)
