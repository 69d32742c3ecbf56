"""Reader of twinpool's own trace format.

Knows no other format; `own_lines` says what stands in a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinpool.errors import TraceError
from twinpool.traces import runs
from twinpool.traces.lines import MAX_NESTING, decode, read_lines
from twinpool.traces.own_lines import FORMAT, VERSION, Header, Line, Version
from twinpool.traces.schema import Session, Trace, Turn


@dataclass(slots=True)
class _Open:
    """A session as read so far."""

    first: Line
    depth: int
    turns: list[Turn] = field(default_factory=list)
    children: list[_Open] = field(default_factory=list)


def read_own(path: Path) -> Trace:
    """Read a trace that twinpool wrote.

    Args:
        path: The file; may end in `.gz` or `.xz`.

    Returns:
        Sessions in the order in which they appear.

    Raises:
        TraceError: If the version is not known, or a line cannot be; names file and line.
    """
    lines = read_lines(path)
    number, text = next(lines, (1, b""))
    header = _header(text, str(path), number)
    sessions: dict[str, _Open] = {}
    outermost: list[_Open] = []
    for number, text in lines:
        line = decode(text, Line, "a request", path=str(path), number=number)
        try:
            session = _session_of(line, sessions, outermost)
            if line.turn is not None:
                session.turns.append(_turn(line, line.turn, session, header.block_tokens))
        except (_Fault, runs.BadRuns) as error:
            raise TraceError(str(error), path=str(path), line=number) from None
    return Trace(
        name=path.name,
        format=FORMAT,
        sessions=tuple(_close(session, header.block_tokens) for session in outermost),
        has_times=header.has_times,
    )


class _Fault(ValueError):
    """What is wrong with a line."""


def _header(text: bytes, path: str, number: int) -> Header:
    version = decode(text, Version, "a header", path=path, number=number).twinpool_trace
    if version != VERSION:
        raise TraceError(
            f"version {version} of the format, which this twinpool does not know",
            path=path,
            line=number,
            hint=f"version {VERSION} can be read; the file needs a newer twinpool",
        )
    return decode(text, Header, "a header", path=path, number=number)


def _session_of(line: Line, sessions: dict[str, _Open], outermost: list[_Open]) -> _Open:
    session = sessions.get(line.session)
    if session is not None:
        if line.turn is None:
            raise _Fault(f"session {line.session[:80]!r} has a second line without `turn`")
        for name in ("start_s", "namespace", "parent"):
            value = getattr(line, name)
            if value and value != getattr(session.first, name):
                raise _Fault(f"session {line.session[:80]!r} began with another `{name}`")
        return session
    parent = sessions.get(line.parent)
    if parent is None and line.parent:
        raise _Fault(f"the parent {line.parent[:80]!r} has no line before")
    session = sessions[line.session] = _Open(line, 1 if parent is None else parent.depth + 1)
    if session.depth > MAX_NESTING:
        raise _Fault(f"sessions within sessions, more than {MAX_NESTING} deep")
    (outermost if parent is None else parent.children).append(session)
    return session


def _turn(line: Line, index: int, session: _Open, block_tokens: int) -> Turn:
    if index != len(session.turns):
        raise _Fault(f"turn {index} of {line.session[:80]!r}, {len(session.turns)} expected")
    if (
        line.sent_s is None
        or line.ids is None
        or line.input_tokens is None
        or line.output_tokens is None
    ):
        raise _Fault("a request needs `t`, `in`, `out` and `ids`")
    blocks = runs.expand(line.ids, runs.either_blocks(line.input_tokens, block_tokens))
    answer = None
    if line.answer is not None:
        whole = runs.either_blocks(line.input_tokens + line.output_tokens, block_tokens)
        beyond = range(max(0, whole.start - len(blocks)), max(1, whole.stop - len(blocks)))
        answer = runs.expand(line.answer, beyond)
    return Turn(
        start_s=line.sent_s,
        think_s=line.think_s,
        blocks=blocks,
        input_tokens=line.input_tokens,
        output_tokens=line.output_tokens,
        answer=answer,
        is_think_recorded=not line.is_think_derived,
        step=line.step,
        max_tokens=line.max_tokens,
        is_stopped=line.is_stopped,
        boundaries=line.boundaries,
    )


def _close(session: _Open, block_tokens: int) -> Session:
    return Session(
        name=session.first.session,
        block_tokens=block_tokens,
        turns=tuple(session.turns),
        children=tuple(_close(child, block_tokens) for child in session.children),
        start_s=session.first.start_s,
        namespace=session.first.namespace,
    )
