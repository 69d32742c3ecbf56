"""Generators of workloads: the same shape and seed make the same trace.

Knows no scheduler: times are what clients would do if a token of an answer took `token_s`.

Chance comes from one `random.Random` of the seed: numpy's generators live behind a module with
hidden global state, which the package keeps out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from random import Random

import numpy as np

from twinpool.errors import ConfigError
from twinpool.traces.own_lines import FORMAT
from twinpool.traces.schema import Session, Trace, Turn
from twinpool.traces.shapes import AgentsShape, BurstShape, ChatShape, Shape, SharedPromptShape


def make_agents(shape: AgentsShape, seed: int) -> Trace:
    """Generate sessions of agents.

    Args:
        shape: The parameters.
        seed: Where chance starts.

    Raises:
        ConfigError: If the system prompt leaves no room in the context.
    """
    room = (shape.max_context - shape.system_tokens) // 4
    if room < 1:
        raise ConfigError(
            f"--max-context is {shape.max_context} with --system-tokens {shape.system_tokens}",
            hint="it must leave at least 4 tokens",
        )
    maker = _Maker(shape, seed)
    system = maker.fresh(shape.system_tokens // shape.block_tokens)

    def length(median: int) -> int:
        return maker.length(median, shape.length_spread, room)

    def session(stream: _Stream) -> Iterator[tuple[int, float]]:
        turns = maker.length(shape.turns, shape.turns_spread, shape.max_turns)
        stream.add(length(shape.task_tokens))
        for index in range(turns):
            think_s = 0.0
            answer = length(shape.answer_tokens)
            if index:
                think_s = maker.pause(shape.think_s, shape.think_spread)
                result = length(shape.result_tokens)
                is_full = stream.tokens + result + answer > shape.max_context
                if is_full or maker.random.random() < shape.rewrite_chance:
                    stream.rewrite(shape.system_tokens)
                    stream.add(length(shape.summary_tokens))
                stream.add(result)
            yield answer, think_s

    return maker.trace("agents", shape.sessions, shape.rate, session, system, shape.system_tokens)


def make_chat(shape: ChatShape, seed: int) -> Trace:
    """Generate chats.

    Args:
        shape: The parameters.
        seed: Where chance starts.

    Raises:
        ConfigError: If the system prompt leaves no room in the context.
    """
    room = (shape.max_context - shape.system_tokens) // 2
    if room < 1:
        raise ConfigError(
            f"--max-context is {shape.max_context} with --system-tokens {shape.system_tokens}",
            hint="it must leave at least 2 tokens",
        )
    maker = _Maker(shape, seed)
    system = maker.fresh(shape.system_tokens // shape.block_tokens)

    def session(stream: _Stream) -> Iterator[tuple[int, float]]:
        turns = maker.length(shape.turns, shape.turns_spread, shape.max_turns)
        for index in range(turns):
            message = maker.length(shape.message_tokens, shape.length_spread, room)
            answer = maker.length(shape.answer_tokens, shape.length_spread, room)
            think_s = maker.pause(shape.think_s, shape.think_spread) if index else 0.0
            if stream.tokens + message + answer > shape.max_context:
                return
            stream.add(message)
            yield answer, think_s

    return maker.trace("chat", shape.sessions, shape.rate, session, system, shape.system_tokens)


def make_burst(shape: BurstShape, seed: int) -> Trace:
    """Generate bursts of short requests.

    Args:
        shape: The parameters.
        seed: Where chance starts.
    """
    maker = _Maker(shape, seed)
    starts = sorted(
        _milliseconds(number // shape.burst * shape.every_s + maker.random.random() * shape.burst_s)
        for number in range(shape.requests)
    )
    sessions = []
    for number, start_s in enumerate(starts):
        stream = _Stream(maker, np.empty(0, dtype=np.int32), 0)
        stream.add(maker.length(shape.prompt_tokens, shape.length_spread, shape.max_tokens))
        answer = maker.length(shape.answer_tokens, shape.length_spread, shape.max_tokens)
        sessions.append(maker.session(f"burst-{number}", start_s, stream, iter([(answer, 0.0)])))
    return Trace(name="burst", format=FORMAT, sessions=tuple(sessions), has_times=True)


def make_shared_prompt(shape: SharedPromptShape, seed: int) -> Trace:
    """Generate one-turn requests under a few system prompts.

    Args:
        shape: The parameters.
        seed: Where chance starts.
    """
    maker = _Maker(shape, seed)
    num_blocks = shape.prompt_tokens // shape.block_tokens
    systems = [maker.fresh(num_blocks) for _ in range(shape.prompts)]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(shape.prompts)))
    sessions = []
    start_s = 0.0
    for number in range(shape.requests):
        start_s = _milliseconds(start_s + maker.random.expovariate(shape.rate))
        (system,) = maker.random.choices(systems, cum_weights=weights)
        stream = _Stream(maker, system, shape.prompt_tokens)
        stream.add(maker.length(shape.tail_tokens, shape.length_spread, shape.max_tokens))
        answer = maker.length(shape.answer_tokens, shape.length_spread, shape.max_tokens)
        sessions.append(maker.session(f"shared-{number}", start_s, stream, iter([(answer, 0.0)])))
    return Trace(name="shared-prompt", format=FORMAT, sessions=tuple(sessions), has_times=True)


Turns = Iterator[tuple[int, float]]


class _Maker:
    """Chance, fresh block ids, and sessions made of them."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.random = Random(seed)
        self.block_tokens = shape.block_tokens
        self._token_s = shape.token_s
        self._next = 0

    def fresh(self, num_blocks: int) -> np.ndarray:
        """Return ids that no block has yet."""
        first, self._next = self._next, self._next + num_blocks
        if self._next > 2**31:
            raise ConfigError(
                f"the trace has more than {2**31} different blocks", hint="make it smaller"
            )
        return np.arange(first, self._next, dtype=np.int32)

    def length(self, median: float, spread: float, most: int) -> int:
        """Draw a whole number from 1 to `most`; what lies beyond is drawn again."""
        if median > most:
            raise ConfigError(
                f"a median of {median} where {most} is the most there is room for",
                hint="lower the median, or raise --max-context, --max-tokens or --max-turns",
            )
        while True:
            drawn = max(1, round(self.random.lognormvariate(math.log(median), spread)))
            if drawn <= most:
                return drawn

    def pause(self, median: float, spread: float) -> float:
        """Draw seconds, to the millisecond."""
        return _milliseconds(self.random.lognormvariate(math.log(median), spread))

    def trace(
        self,
        name: str,
        num_sessions: int,
        rate: float,
        turns_of: Callable[[_Stream], Turns],
        system: np.ndarray,
        system_tokens: int,
    ) -> Trace:
        """Make sessions that start at random, `rate` per second."""
        sessions = []
        start_s = 0.0
        for number in range(num_sessions):
            start_s = _milliseconds(start_s + self.random.expovariate(rate))
            stream = _Stream(self, system, system_tokens)
            sessions.append(self.session(f"{name}-{number}", start_s, stream, turns_of(stream)))
        return Trace(name=name, format=FORMAT, sessions=tuple(sessions), has_times=True)

    def session(self, name: str, start_s: float, stream: _Stream, turns: Turns) -> Session:
        """Make one session; `turns` lets the stream grow, and yields answer and pause."""
        made: list[Turn] = []
        now_s = 0.0
        for answer_tokens, think_s in turns:
            now_s = _milliseconds(now_s + think_s)
            prompt_tokens, prompt = stream.tokens, stream.blocks
            stream.add(answer_tokens)
            made.append(
                Turn(
                    start_s=now_s,
                    think_s=think_s,
                    blocks=prompt,
                    input_tokens=prompt_tokens,
                    output_tokens=answer_tokens,
                    answer=stream.blocks[len(prompt) :],
                )
            )
            now_s += answer_tokens * self._token_s
        return Session(
            name=name, block_tokens=self.block_tokens, turns=tuple(made), start_s=start_s
        )


class _Stream:
    """The tokens of one session's context; only those of full blocks have ids."""

    def __init__(self, maker: _Maker, shared: np.ndarray, tokens: int) -> None:
        self._maker = maker
        self._shared = shared
        self.blocks = shared
        self.tokens = tokens

    def add(self, tokens: int) -> None:
        """Append new tokens."""
        self.tokens += tokens
        missing = self.tokens // self._maker.block_tokens - len(self.blocks)
        if missing:
            self.blocks = np.concatenate([self.blocks, self._maker.fresh(missing)])

    def rewrite(self, tokens: int) -> None:
        """Drop everything but the shared beginning of so many tokens."""
        self.tokens = tokens
        self.blocks = self._shared


def _milliseconds(seconds: float) -> float:
    # Whole milliseconds hide the last bit, in which mathematical libraries differ.
    return round(seconds, 3)
