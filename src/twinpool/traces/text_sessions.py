"""Sessions from requests recorded as text: tokens, blocks, prefix numbers, pauses.

Knows no file format and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinpool.traces.numbering import PrefixNumbering, spell_out
from twinpool.traces.schema import Session, Turn
from twinpool.traces.tokens import TokenArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One request as tokens.

    Attributes:
        session: The name of its session.
        at_s: When it was sent, in seconds of any clock; 0 where unknown.
        prompt: Its tokens.
        answer: The answer's tokens; None where only their number is known.
        output_tokens: Tokens of the answer.
    """

    session: str
    at_s: float
    prompt: TokenArray
    answer: TokenArray | None
    output_tokens: int


def text_sessions(requests: Sequence[TextRequest], block_tokens: int) -> tuple[Session, ...]:
    """Build sessions; blocks are comparable among all of them.

    Args:
        requests: In the order of the source.
        block_tokens: Tokens of a block; a last block that is not full has no id.

    Returns:
        Sessions in the order in which they appear, their turns by time. Pauses are the gaps between
        sendings: text says nothing of when an answer ended.
    """
    numbering = PrefixNumbering()
    groups: dict[str, list[TextRequest]] = {}
    for request in requests:
        groups.setdefault(request.session, []).append(request)
    begin_s = min((request.at_s for request in requests), default=0.0)
    return tuple(
        _session(name, group, numbering, block_tokens, begin_s) for name, group in groups.items()
    )


def _session(
    name: str,
    group: list[TextRequest],
    numbering: PrefixNumbering,
    block_tokens: int,
    begin_s: float,
) -> Session:
    ordered = sorted(group, key=lambda request: request.at_s)
    first_s = previous_s = ordered[0].at_s
    turns = []
    for request in ordered:
        turns.append(
            _turn(
                request, numbering, block_tokens, request.at_s - first_s, request.at_s - previous_s
            )
        )
        previous_s = request.at_s
    return Session(
        name=name, block_tokens=block_tokens, turns=tuple(turns), start_s=first_s - begin_s
    )


def _turn(
    request: TextRequest,
    numbering: PrefixNumbering,
    block_tokens: int,
    start_s: float,
    think_s: float,
) -> Turn:
    tokens = request.prompt
    if request.answer is not None:
        tokens = np.concatenate([request.prompt, request.answer])
    count = len(tokens) // block_tokens
    runs, _ = numbering.add(tokens[: count * block_tokens].reshape(count, block_tokens))
    ids = spell_out(runs)
    num_blocks = len(request.prompt) // block_tokens
    return Turn(
        start_s=start_s,
        think_s=think_s,
        blocks=ids[:num_blocks],
        input_tokens=len(request.prompt),
        output_tokens=request.output_tokens,
        answer=None if request.answer is None else ids[num_blocks:],
        is_think_recorded=False,
    )
