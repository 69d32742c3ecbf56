"""The lines of twinpool's own trace format, version 1.

JSON lines, plain, `.gz` or `.xz`. The first line is the header; each line after it is one request:

    {"twinpool_trace": 1, "block_tokens": 64, "has_times": true}
    {"session": "a", "start": 3.5, "turn": 0, "t": 0.0, "in": 130, "out": 70, "ids": [0, 2],
     "answer": [2, 1]}
    {"session": "a", "turn": 1, "t": 9.0, "think": 4.0, "in": 210, "out": 5, "ids": [0, 3]}

`ids` are run-length pairs `[first, length, ...]` of prefix numbers: equal numbers in one namespace
are equal tokens, with all tokens before them; no token can be read from them. They cover the full
blocks of the prompt, and its partial last block where the source had an id for it; `answer` those
that prompt and answer fill beyond.

What holds for a session stands on its first line only: `start`, `namespace`, `parent`. A session
that has no request of its own has one line without `turn`. Sessions may be interleaved; the turns
of one session stand in order. Knows neither how lines are written nor how they are read.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from twinpool.traces.lines import BlockTokens, Seconds, Tokens

FORMAT = "twinpool"
VERSION = 1


class Version(msgspec.Struct):
    """As much of the header as every version has."""

    twinpool_trace: int


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """The first line.

    Attributes:
        twinpool_trace: The format's version.
        block_tokens: Tokens of a block.
        has_times: Whether `start` says when sessions arrived.
    """

    twinpool_trace: int
    block_tokens: BlockTokens
    has_times: bool


class Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One request, or a session without any.

    Attributes:
        session: The session's name, unique in the file.
        start_s: `start`: seconds from the start of the trace, or of the parent, to its start.
        namespace: Where its ids belong.
        parent: The session that started it; empty for none.
        turn: Which turn it is, from 0; None for a session without requests.
        sent_s: `t`: seconds from the start of the session.
        think_s: `think`: seconds since the answer before.
        is_think_derived: `think_derived`: whether that is what is left of a gap, not recorded.
        input_tokens: `in`: tokens of the prompt.
        output_tokens: `out`: tokens of the answer.
        ids: Prompt blocks.
        answer: Blocks beyond; None where unknown.
        step: The scheduler's step at which it arrived.
        max_tokens: `max`: tokens that the answer could have had.
        is_stopped: `stopped`: whether the answer ended by itself.
        boundaries: `bounds`: depths that later prompts were likely to share.
    """

    session: str
    start_s: Seconds = msgspec.field(name="start", default=0.0)
    namespace: str = ""
    parent: str = ""
    turn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    sent_s: Seconds | None = msgspec.field(name="t", default=None)
    think_s: Seconds = msgspec.field(name="think", default=0.0)
    is_think_derived: bool = msgspec.field(name="think_derived", default=False)
    input_tokens: Tokens | None = msgspec.field(name="in", default=None)
    output_tokens: Tokens | None = msgspec.field(name="out", default=None)
    ids: list[int] | None = None
    answer: list[int] | None = None
    step: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = msgspec.field(name="max", default=None)
    is_stopped: bool = msgspec.field(name="stopped", default=False)
    boundaries: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = msgspec.field(
        name="bounds", default=()
    )
