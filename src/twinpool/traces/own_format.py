"""Writer of twinpool's own trace format: prefix numbers and times, never a token.

Deterministic: the same requests in the same order give the same bytes. Knows neither servers nor
other formats; `own_lines` says what stands in a line.
"""

from __future__ import annotations

import gzip
import lzma
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import msgspec
import numpy as np
import numpy.typing as npt

from twinpool.errors import TraceError
from twinpool.traces.numbering import PrefixNumbering, Runs
from twinpool.traces.own_lines import VERSION, Header, Line
from twinpool.traces.runs import collapse
from twinpool.traces.schema import Session, Trace, Turn


class TraceWriter:
    """Writes one trace, request by request.

    Args:
        stream: Where lines go; not closed.
        block_tokens: Tokens of a block.
        has_times: Whether `start_s` of sessions says when they arrived.

    Changes:
        Keeps the contents of all different blocks, to number them: memory grows with the trace.
    """

    def __init__(self, stream: IO[bytes], *, block_tokens: int, has_times: bool = True) -> None:
        self._stream = stream
        self._block_tokens = block_tokens
        self._numberings: defaultdict[str, PrefixNumbering] = defaultdict(PrefixNumbering)
        self._encoder = msgspec.json.Encoder()
        self._num_turns: dict[str, int] = {}
        self._openings: dict[str, Line] = {}
        self._namespaces: dict[str, str] = {}
        self._write(Header(twinpool_trace=VERSION, block_tokens=block_tokens, has_times=has_times))

    def open_session(
        self, name: str, *, start_s: float = 0.0, namespace: str = "", parent: str = ""
    ) -> None:
        """Begin a session; its first turn, or `write_empty`, writes this too.

        Args:
            name: Unique in the trace.
            start_s: Seconds from the start of the trace, or of the parent.
            namespace: Where its ids belong.
            parent: The session that started it, which has a line by now; empty for none.
        """
        assert name not in self._num_turns, f"session {name!r} is opened twice"
        self._num_turns[name] = 0
        self._namespaces[name] = namespace
        self._openings[name] = Line(
            session=name, start_s=start_s, namespace=namespace, parent=parent
        )

    def write_empty(self, session: str) -> None:
        """Write a session that has no request.

        Args:
            session: The session, opened before.
        """
        self._write(self._openings.pop(session))

    def write_turn(self, session: str, turn: Turn) -> None:
        """Write a turn whose blocks have ids.

        Args:
            session: Its session, opened before.
            turn: The turn; its ids are numbered anew.
        """
        path = turn.blocks
        if turn.answer is not None:
            path = np.concatenate([turn.blocks, turn.answer])
        runs, _ = self._numbering(session).add(path.astype(np.int32, copy=False))
        self._line(session, turn, runs, len(turn.blocks), turn.answer is not None)

    def find(self, namespace: str, tokens: npt.NDArray[np.int32]) -> Runs:
        """Return the numbers of a prompt's blocks from the start that are known by now.

        Args:
            namespace: Where its ids belong.
            tokens: Tokens of the prompt, int32.
        """
        count = len(tokens) // self._block_tokens
        path = tokens[: count * self._block_tokens].reshape(count, self._block_tokens)
        return self._numberings[namespace].find(path)

    def write_tokens(self, session: str, turn: Turn, tokens: npt.NDArray[np.int32]) -> int | None:
        """Write a turn from its tokens.

        Args:
            session: Its session, opened before.
            turn: Its times and lengths; `blocks` and `answer` are not read.
            tokens: Tokens of the prompt, then those of the answer, int32. Kept, in part: the caller
                must not write to them any more.

        Returns:
            The number of the prompt's last block; None for a prompt without a full one.
        """
        assert len(tokens) == turn.input_tokens + turn.output_tokens, "tokens of another request"
        count = len(tokens) // self._block_tokens
        path = tokens[: count * self._block_tokens].reshape(count, self._block_tokens)
        runs, _ = self._numbering(session).add(path)
        num_blocks = turn.input_tokens // self._block_tokens
        self._line(session, turn, runs, num_blocks, True)
        prompt, _ = _cut(runs, num_blocks)
        return sum(prompt[-1]) - 1 if prompt else None

    def _numbering(self, session: str) -> PrefixNumbering:
        return self._numberings[self._namespaces[session]]

    def _line(
        self, session: str, turn: Turn, runs: Runs, num_blocks: int, has_answer: bool
    ) -> None:
        index = self._num_turns[session]
        self._num_turns[session] = index + 1
        line = self._openings.pop(session, None) or Line(session=session)
        prompt, answer = _cut(runs, num_blocks)
        line.turn, line.sent_s, line.think_s = index, turn.start_s, turn.think_s
        line.is_think_derived = not turn.is_think_recorded
        line.input_tokens, line.output_tokens = turn.input_tokens, turn.output_tokens
        line.ids, line.answer = collapse(prompt), collapse(answer) if has_answer else None
        line.is_stopped = turn.is_stopped
        line.step, line.max_tokens, line.boundaries = turn.step, turn.max_tokens, turn.boundaries
        self._write(line)

    def _write(self, line: msgspec.Struct) -> None:
        self._stream.write(self._encoder.encode(line) + b"\n")


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace to a file, in twinpool's own format.

    Args:
        trace: The trace.
        path: The file; `.gz` and `.xz` are packed. It appears when all of it has been written.

    Raises:
        TraceError: If two sessions have one name, or the file cannot be written.
    """
    names: set[str] = set()
    for session in trace.sessions:
        for each in session.walk():
            if each.name in names:
                raise TraceError(f"two sessions are called {each.name[:80]!r}", path=trace.name)
            names.add(each.name)
    with created(path) as stream:
        writer = TraceWriter(stream, block_tokens=trace.block_tokens, has_times=trace.has_times)
        for session in trace.sessions:
            _write_session(writer, session, "")


def _write_session(writer: TraceWriter, session: Session, parent: str) -> None:
    writer.open_session(
        session.name, start_s=session.start_s, namespace=session.namespace, parent=parent
    )
    if not session.turns:
        writer.write_empty(session.name)
    for turn in session.turns:
        writer.write_turn(session.name, turn)
    for child in session.children:
        _write_session(writer, child, session.name)


@contextmanager
def created(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that appears under its name only when all went well.

    Args:
        path: The file; `.gz` and `.xz` are packed, with no time in them.

    Raises:
        TraceError: If it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as raw:
            if path.suffix.lower() == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            elif path.suffix.lower() == ".xz":
                with lzma.LZMAFile(raw, "wb") as dense:
                    yield cast(IO[bytes], dense)
            else:
                yield raw
        part.replace(path)
    except OSError as error:
        raise TraceError(f"cannot be written: {error}", path=str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def _cut(runs: Runs, count: int) -> tuple[Runs, Runs]:
    """Split runs after a number of blocks."""
    left: Runs = []
    right: Runs = []
    for first, length in runs:
        taken = min(length, count)
        count -= taken
        if taken:
            left.append((first, taken))
        if taken < length:
            right.append((first + taken, length - taken))
    return left, right
