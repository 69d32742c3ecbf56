"""Units: a recorded prompt as keys of whole blocks; a long context costs hundreds of integers.

A unit is a block of the trace or an equal part of one. What a prompt has beyond its last known
block gets keys that nobody else has: it can never be matched, which errs by less than a block.
Knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from twinpool.errors import ConfigError
from twinpool.traces.schema import BlockArray, Session, Turn

# Blocks longer than this are cut: one unit is the least that a request takes of the KV pool.
DEFAULT_UNIT_TOKENS = 64
_MAX_KEY = 2**31 - 1


class PrivateKeys:
    """Keys that stand for tokens which nobody else has; negative, so that no block is one."""

    def __init__(self) -> None:
        self._next = -1

    def take(self, count: int) -> BlockArray:
        """Return so many keys that were never returned before, int32."""
        first = self._next
        self._next -= count
        return np.arange(first, first - count, -1, dtype=np.int64).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One request to be sent.

    Attributes:
        session: Name of its session.
        turn: Which turn of the session it is, from 0.
        namespace: Prefixes are shared within a namespace only.
        prompt: Keys of the prompt's units, int32, at least one.
        answer: Keys of the units that follow while the answer is written, int32; as many as it
            fills.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer, 1 or more.
        unit_tokens: Tokens of one unit.
        num_whole: Leading units of the prompt that are full and that a later turn's prompt has.
        max_units: Units that could have been sampled; more than are, where the answer ended by
            itself.
        is_stopped: True when the answer ended by itself, where that is recorded.
        boundaries: Depths that later prompts are likely to share, in units, rising.
        step: The scheduler's step at which it arrived, where that is recorded.
    """

    session: str
    turn: int
    namespace: str
    prompt: BlockArray
    answer: BlockArray
    input_tokens: int
    output_tokens: int
    unit_tokens: int
    num_whole: int
    max_units: int
    is_stopped: bool = False
    boundaries: tuple[int, ...] = ()
    step: int | None = None

    @property
    def num_decodes(self) -> int:
        """Units of the answer that go through the model after the prompt."""
        return len(self.answer)

    def due_after(self, decode: int) -> int:
        """Return after how many tokens beyond the first the decode of a unit is complete.

        Args:
            decode: Which unit of the answer, from 1.
        """
        last = self.output_tokens - 1
        if decode >= len(self.answer):
            return last
        return min((len(self.prompt) + decode) * self.unit_tokens - self.input_tokens, last)


def unit_of(block_tokens: int, asked: int | None = None) -> int:
    """Choose the tokens of a unit.

    Args:
        block_tokens: Tokens of a block of the trace.
        asked: What was asked for; None: the block, or an equal part of it of at most 64 tokens.

    Raises:
        ConfigError: If the unit that was asked for does not divide the block.
    """
    if asked is None:
        asked = next(
            size
            for size in range(min(block_tokens, DEFAULT_UNIT_TOKENS), 0, -1)
            if block_tokens % size == 0
        )
    if asked < 1 or block_tokens % asked:
        raise ConfigError(
            f"units of {asked} tokens do not divide the trace's blocks of {block_tokens}",
            hint=f"use a divisor of {block_tokens}",
        )
    return asked


def tickets(
    session: Session, *, unit_tokens: int, private: PrivateKeys, recorded_answers: bool
) -> Iterator[Ticket]:
    """Turn the turns of a session into requests; turns without a prompt are left out.

    Args:
        session: The session; what it started is not looked at.
        unit_tokens: Tokens of one unit, a divisor of the session's blocks.
        private: Where keys come from that nobody else has.
        recorded_answers: True when the model is taken to produce what was recorded, so that the
            next turn finds the answer's state; False when its answers are its own.
    """
    turns = session.turns
    for number, turn in enumerate(turns):
        if turn.input_tokens < 1:
            continue
        following = turns[number + 1] if number + 1 < len(turns) else None
        said = (
            _recorded(turn, following, session.block_tokens, unit_tokens)
            if recorded_answers
            else np.empty(0, dtype=np.int32)
        )
        yield _ticket(session, number, said, unit_tokens, private)


def _ticket(
    session: Session, number: int, said: BlockArray, unit_tokens: int, private: PrivateKeys
) -> Ticket:
    """Make the request of one turn; `said` are the keys behind its known blocks, maybe none."""
    turn = session.turns[number]
    output_tokens = max(turn.output_tokens, 1)
    num_prompt = -(-turn.input_tokens // unit_tokens)
    known = _keys(turn.blocks, session.block_tokens, unit_tokens)[:num_prompt]
    # A unit that the answer does not fill is left out: no later prompt has it as it is. A short
    # answer ends inside the prompt's last unit and still takes its time to write.
    total = (turn.input_tokens + output_tokens - 1) // unit_tokens
    num_full = turn.input_tokens // unit_tokens
    num_answer = max(total - num_prompt, int(output_tokens > 1))
    prompt = np.concatenate([known, private.take(num_prompt - len(known))])
    answer = private.take(num_answer)
    if len(said):
        prompt, answer = _with_recorded(prompt, answer, known, said)
    return Ticket(
        session=session.name,
        turn=number,
        namespace=session.namespace,
        prompt=prompt,
        answer=answer,
        input_tokens=turn.input_tokens,
        output_tokens=output_tokens,
        unit_tokens=unit_tokens,
        num_whole=min(_num_shareable(session, turn, len(said), unit_tokens), num_full),
        max_units=_max_units(turn, num_answer + 1, unit_tokens),
        boundaries=tuple(
            sorted({depth // unit_tokens for depth in turn.boundaries if depth >= unit_tokens})
        ),
        is_stopped=turn.is_stopped,
        step=turn.step,
    )


def _num_shareable(session: Session, turn: Turn, num_said: int, unit_tokens: int) -> int:
    """Return the units of full blocks, and of what was said behind them: what another prompt has.

    A block that is not full has an id of its own, which the prompt that continues this one has not.
    A repeat of the same prompt has it, and finds less than a block too little.
    """
    num_blocks = min(len(turn.blocks), turn.input_tokens // session.block_tokens)
    num_said = num_said if num_blocks == len(turn.blocks) else 0
    return num_blocks * (session.block_tokens // unit_tokens) + num_said


def _max_units(turn: Turn, num_sampled: int, unit_tokens: int) -> int:
    """Return what the request could have sampled; only whole tokens tell more than the answer."""
    if unit_tokens != 1 or turn.max_tokens is None:
        return num_sampled
    return max(turn.max_tokens, num_sampled)


def _with_recorded(
    prompt: BlockArray, answer: BlockArray, known: BlockArray, said: BlockArray
) -> tuple[BlockArray, BlockArray]:
    """Put recorded keys behind the known part of the prompt, as far as prompt and answer reach."""
    whole = np.concatenate([prompt, answer])
    end = min(len(known) + len(said), len(whole))
    whole[len(known) : end] = said[: end - len(known)]
    return whole[: len(prompt)], whole[len(prompt) :]


def _recorded(
    turn: Turn, following: Turn | None, block_tokens: int, unit_tokens: int
) -> BlockArray:
    """Return the keys behind the prompt's known blocks that the trace tells of, maybe none."""
    num_known = len(turn.blocks)
    if turn.answer is not None:
        return _keys(turn.answer, block_tokens, unit_tokens)
    if following is None or len(following.blocks) <= num_known:
        return np.empty(0, dtype=np.int32)
    if not np.array_equal(following.blocks[:num_known], turn.blocks):
        return np.empty(0, dtype=np.int32)
    return _keys(following.blocks[num_known:], block_tokens, unit_tokens)


def _keys(blocks: BlockArray, block_tokens: int, unit_tokens: int) -> BlockArray:
    """Spell blocks out as units: block `b` is `b n, b n + 1, ...` for `n` units to the block."""
    parts = block_tokens // unit_tokens
    if parts == 1 or not len(blocks):
        return blocks
    if int(blocks.max()) > (_MAX_KEY - parts) // parts:
        raise ConfigError(
            f"block id {int(blocks.max())} is too large to be cut into {parts} units",
            hint="use larger units, or convert the trace, which numbers its blocks anew",
        )
    spelt = blocks.astype(np.int64)[:, None] * parts + np.arange(parts)
    return spelt.reshape(-1).astype(np.int32)
