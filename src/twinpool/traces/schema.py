"""The trace schema: sessions of turns, each a prompt in block ids and a length of output.

Knows no file format and no scheduler. A block id stands for `block_tokens` tokens; equal ids at
equal positions of one session are equal tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BlockArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session.

    Attributes:
        start_s: Seconds from the start of the session at which it was sent.
        think_s: Seconds between the answer before it and its sending.
        blocks: Ids of the prompt's full blocks, int32.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
    """

    start_s: float
    think_s: float
    blocks: BlockArray
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session: turns in order; each prompt repeats most of the one before.

    Attributes:
        name: The session's id in its trace.
        block_tokens: Tokens of a block.
        turns: The turns of the session itself.
        children: Sessions that it started, such as those of subagents.
    """

    name: str
    block_tokens: int
    turns: tuple[Turn, ...]
    children: tuple[Session, ...] = ()
