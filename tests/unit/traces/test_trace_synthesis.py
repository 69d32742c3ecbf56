"""Generated workloads: same seed, same trace; the shape that was asked for; valid ids."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinpool.errors import ConfigError
from twinpool.traces.own_format import TraceWriter
from twinpool.traces.schema import Trace
from twinpool.traces.shapes import AgentsShape, BurstShape, ChatShape, Shape, SharedPromptShape
from twinpool.traces.statistics import statistics
from twinpool.traces.synthesis import make_agents, make_burst, make_chat, make_shared_prompt

SMALL: dict[str, tuple[Callable[[Any, int], Trace], Shape]] = {
    "agents": (make_agents, AgentsShape(sessions=6, turns=12, max_context=60_000)),
    "chat": (make_chat, ChatShape(sessions=20)),
    "burst": (make_burst, BurstShape(requests=60, burst=20)),
    "shared-prompt": (make_shared_prompt, SharedPromptShape(requests=60)),
}


def spelled(trace: Trace) -> bytes:
    stream = io.BytesIO()
    writer = TraceWriter(stream, block_tokens=trace.block_tokens)
    for session in trace.sessions:
        writer.open_session(session.name, start_s=session.start_s)
        for turn in session.turns:
            writer.write_turn(session.name, turn)
    return stream.getvalue()


@pytest.mark.parametrize("kind", SMALL)
def test_the_seed_makes_the_trace(kind: str) -> None:
    make, shape = SMALL[kind]
    assert spelled(make(shape, 7)) == spelled(make(shape, 7))
    assert spelled(make(shape, 7)) != spelled(make(shape, 8))


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("block_tokens", [1, 64])
def test_ids_cover_prompt_and_answer_and_go_on_with_the_context(
    kind: str, block_tokens: int
) -> None:
    make, shape = SMALL[kind]
    trace = make(replace(shape, block_tokens=block_tokens), 3)
    assert trace.block_tokens == block_tokens
    for session in trace.sessions:
        assert session.turns
        before = 0.0
        for turn in session.turns:
            assert turn.answer is not None
            assert len(turn.blocks) == turn.input_tokens // block_tokens
            both = turn.input_tokens + turn.output_tokens
            assert len(turn.blocks) + len(turn.answer) == both // block_tokens
            assert turn.output_tokens >= 1
            assert turn.start_s >= before
            before = turn.start_s


def test_agents_stay_within_their_context_and_are_rewritten() -> None:
    shape = AgentsShape(sessions=10, turns=30, max_context=40_000, rewrite_chance=0.0)
    trace = make_agents(shape, 1)
    figures = statistics(trace)
    longest = max(t.input_tokens + t.output_tokens for s in trace.sessions for t in s.turns)
    assert longest <= 40_000
    assert figures.num_rewritten > 0
    assert figures.num_sessions == 10
    system = shape.system_tokens // shape.block_tokens
    for session in trace.sessions:
        for turn in session.turns:
            assert np.array_equal(turn.blocks[:system], np.arange(system))


def test_agents_never_rewritten_keep_every_answer() -> None:
    shape = AgentsShape(sessions=4, turns=10, rewrite_chance=0.0, max_context=2_000_000)
    for session in make_agents(shape, 2).sessions:
        for turn, after in zip(session.turns, session.turns[1:], strict=False):
            path = np.concatenate([turn.blocks, turn.answer])
            assert np.array_equal(after.blocks[: len(path)], path)


def test_bursts_come_in_bursts_and_share_nothing() -> None:
    trace = make_burst(BurstShape(requests=100, burst=25, burst_s=1.0, every_s=20.0), 5)
    starts = [session.start_s for session in trace.sessions]
    assert starts == sorted(starts)
    counts = [sum(20 * k <= start <= 20 * k + 1 for start in starts) for k in range(4)]
    assert counts == [25] * 4
    assert statistics(trace).reused_tokens == 0


def test_shared_prompts_are_asked_for_by_rank() -> None:
    shape = SharedPromptShape(requests=600, prompts=3)
    trace = make_shared_prompt(shape, 5)
    firsts = [int(session.turns[0].blocks[0]) for session in trace.sessions]
    counts = [firsts.count(first) for first in sorted(set(firsts))]
    assert len(counts) == 3
    assert counts == sorted(counts, reverse=True)
    hits = statistics(trace).reused_tokens
    assert hits >= (600 - 3) * (shape.prompt_tokens // 64) * 64


def test_chats_share_the_system_prompt() -> None:
    trace = make_chat(ChatShape(sessions=30, system_tokens=640), 5)
    assert {tuple(s.turns[0].blocks[:10].tolist()) for s in trace.sessions} == {tuple(range(10))}


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        (AgentsShape, {"sessions": 0}, "--sessions is 0"),
        (AgentsShape, {"rewrite_chance": 1.5}, "--rewrite-chance is 1.5"),
        (ChatShape, {"rate": 0.0}, "--rate is 0.0"),
        (ChatShape, {"think_s": float("nan")}, "--think-s is nan"),
        (BurstShape, {"every_s": float("inf")}, "--every-s is inf"),
        (SharedPromptShape, {"block_tokens": 0}, "--block-tokens is 0"),
    ],
)
def test_a_parameter_out_of_range_names_its_flag(
    kind: type[Shape], values: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        kind(**values)


@pytest.mark.parametrize(
    ("make", "shape", "named"),
    [
        (make_agents, AgentsShape(max_context=16_003), "--max-context is 16003"),
        (make_agents, AgentsShape(max_context=20_000), "median of 2000 where 1000 is the most"),
        (make_chat, ChatShape(max_context=401), "--max-context is 401"),
        (make_burst, BurstShape(max_tokens=100), "median of 400 where 100 is the most"),
    ],
)
def test_a_shape_without_room_is_refused(
    make: Callable[[Any, int], Trace], shape: Shape, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        make(shape, 0)
