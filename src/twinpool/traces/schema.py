"""The trace schema: sessions of turns, each a prompt in block ids and a length of output.

Knows no file format and no scheduler. A block id stands for `block_tokens` tokens; equal ids at
equal positions of one namespace are equal tokens, and so are all tokens before them.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        blocks: Ids of the prompt's blocks, int32. A last block that is not full has an id in some
            formats and none in others.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
        answer: Ids of the blocks that prompt and answer fill beyond `blocks`, where the trace has
            them; None where the answer shows up only in the next turn's prompt, if at all.
        is_think_recorded: False where the source does not say it and `think_s` is what is left of
            the gap between two sendings: too long by what the answer took where that is unknown.
        step: The scheduler's step at which it arrived, where a server recorded the trace.
        max_tokens: Tokens that the answer could have had, where a server recorded the trace.
        is_stopped: True when the answer ended by itself and not for want of tokens, likewise.
        boundaries: Depths that later prompts were likely to share, likewise; tokens, rising.
    """

    start_s: float
    think_s: float
    blocks: BlockArray
    input_tokens: int
    output_tokens: int
    answer: BlockArray | None = None
    is_think_recorded: bool = True
    step: int | None = None
    max_tokens: int | None = None
    is_stopped: bool = False
    boundaries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session: turns in order; each prompt repeats most of the one before.

    Attributes:
        name: The session's id in its trace.
        block_tokens: Tokens of a block.
        turns: The turns of the session itself.
        children: Sessions that it started, such as those of subagents; their `start_s` counts from
            the start of this one.
        start_s: Seconds from the start of the trace to the start of the session.
        namespace: Ids are comparable within a namespace: the name of the outermost session where
            ids are local to it, empty where they are global.
    """

    name: str
    block_tokens: int
    turns: tuple[Turn, ...]
    children: tuple[Session, ...] = ()
    start_s: float = 0.0
    namespace: str = ""

    def walk(self) -> Iterator[Session]:
        """Yield the session itself, then all that it started, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recorded or generated workload.

    Attributes:
        name: What to call it, such as the file's name.
        format: The reader's name: `agentx`, `mooncake`, ...
        sessions: In the order of the source.
        has_times: True when `start_s` of sessions says when they arrived; False for corpora of
            sessions that began independently.
    """

    name: str
    format: str
    sessions: tuple[Session, ...]
    has_times: bool

    @property
    def block_tokens(self) -> int:
        """Tokens of a block; the same in all sessions. 1 for an empty trace."""
        return self.sessions[0].block_tokens if self.sessions else 1
