"""The recorder: what a server was asked, as a trace of prefix numbers and times, never a token.

Requests are told apart by their prompts: one that goes on where an earlier prompt of its namespace
ended is the next turn of that session. Knows the scheduler's steps only as numbers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import numpy.typing as npt

from twinpool.scheduling.events import FinishReason, Progress
from twinpool.scheduling.plan import TokenArray
from twinpool.traces.own_format import TraceWriter
from twinpool.traces.schema import Turn

_NO_BLOCKS: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    session: str
    prompt: TokenArray
    arrived_s: float
    step: int
    max_tokens: int
    boundaries: tuple[int, ...]
    output: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Session:
    """A session that may go on."""

    started_s: float
    ended_s: float
    namespace: str


@dataclass(slots=True)
class _Ends:
    """Where the last prompts of idle sessions end, as prefix numbers, rising."""

    numbers: list[int] = field(default_factory=list)
    sessions: dict[int, str] = field(default_factory=dict)

    def add(self, number: int, session: str) -> None:
        """Note an end; of two sessions with the same one the later counts."""
        if number not in self.sessions:
            insort(self.numbers, number)
        self.sessions[number] = session

    def drop(self, number: int) -> None:
        """Take an end out of the numbers."""
        del self.numbers[bisect_left(self.numbers, number)]

    def last_within(self, start: int, stop: int) -> int | None:
        """Return the last end in `[start, stop)`, or None."""
        at = bisect_left(self.numbers, stop) - 1
        return self.numbers[at] if at >= 0 and self.numbers[at] >= start else None


class Recorder:
    """Writes a trace of what a scheduler is given.

    Args:
        stream: Where the trace goes; flushed after each request. `close` closes it.
        now_s: The clock's time at the start.

    Changes:
        The writer keeps the tokens of all different prefixes, to number them: memory grows.
    """

    def __init__(self, stream: IO[bytes], now_s: float) -> None:
        self._stream = stream
        self._writer = TraceWriter(stream, block_tokens=1)
        self._begun_s = now_s
        self._live: dict[int, _Live] = {}
        self._namespaces: dict[str, str] = {"": ""}
        self._sessions: dict[str, _Session] = {}
        self._ends: dict[str, _Ends] = {}

    def close(self) -> None:
        """Close the stream; requests that have not ended are left out."""
        self._stream.close()

    def arrived(
        self,
        request_id: int,
        prompt: TokenArray,
        *,
        namespace: str,
        max_tokens: int,
        boundaries: tuple[int, ...],
        step: int,
        now_s: float,
    ) -> None:
        """Note a request that the scheduler has taken.

        Args:
            request_id: Its number.
            prompt: Token ids, int32; kept.
            namespace: Where its prefixes are shared.
            max_tokens: Tokens that its answer may have.
            boundaries: Depths that later prompts are likely to share.
            step: The scheduler's next step.
            now_s: The clock's time.
        """
        # Whose a namespace is shall not show, and a key may stand behind it.
        hidden = self._namespaces.setdefault(namespace, f"n{len(self._namespaces)}")
        name = self._session_of(prompt, hidden, now_s)
        self._live[request_id] = _Live(name, prompt, now_s, step, max_tokens, boundaries)

    def heard(self, progress: Progress, now_s: float) -> None:
        """Note a token or an end.

        Args:
            progress: What the scheduler tells of a request.
            now_s: The clock's time.
        """
        live = self._live.get(progress.request_id)
        if live is None:
            return
        if progress.token is not None:
            live.output.append(progress.token)
        if progress.finish_reason is not None:
            is_stopped = progress.finish_reason is FinishReason.STOP
            self.ended(progress.request_id, now_s, is_stopped=is_stopped)

    def ended(self, request_id: int, now_s: float, *, is_stopped: bool = False) -> None:
        """Write a request that has ended or was dropped; one without an answer is left out.

        Args:
            request_id: Its number; unknown ones are ignored.
            now_s: The clock's time.
            is_stopped: True when its answer ended by itself.
        """
        live = self._live.pop(request_id, None)
        if live is None or not live.output:
            return
        session = self._sessions[live.session]
        think_s = max(live.arrived_s - session.ended_s, 0.0) if session.ended_s else 0.0
        turn = Turn(
            start_s=live.arrived_s - session.started_s,
            think_s=think_s,
            blocks=_NO_BLOCKS,
            input_tokens=len(live.prompt),
            output_tokens=len(live.output),
            step=live.step,
            max_tokens=live.max_tokens,
            is_stopped=is_stopped,
            boundaries=live.boundaries,
        )
        tokens = np.concatenate([live.prompt, np.array(live.output, dtype=np.int32)])
        end = self._writer.write_tokens(live.session, turn, tokens)
        self._stream.flush()
        session.ended_s = now_s
        if end is not None:
            self._ends.setdefault(session.namespace, _Ends()).add(end, live.session)

    def _session_of(self, prompt: TokenArray, namespace: str, now_s: float) -> str:
        """Find the idle session whose last prompt this one goes on from; else begin a new one."""
        ends = self._ends.get(namespace, _Ends())
        for first, length in reversed(self._writer.find(namespace, prompt)):
            found = ends.last_within(first, first + length)
            if found is not None:
                # Until it has ended, nobody else goes on from it.
                ends.drop(found)
                return ends.sessions.pop(found)
        name = f"s{len(self._sessions)}"
        self._sessions[name] = _Session(now_s, 0.0, namespace)
        self._writer.open_session(name, start_s=now_s - self._begun_s, namespace=namespace)
        return name
