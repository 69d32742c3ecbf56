"""Parts of a trace: its first sessions, and the first turns of each.

Knows no format.
"""

from __future__ import annotations

from dataclasses import replace

from twinpool.errors import ConfigError
from twinpool.traces.schema import Session, Trace


def select(
    trace: Trace,
    *,
    num_sessions: int | None = None,
    min_turns: int = 0,
    max_turns: int | None = None,
    with_children: bool = True,
) -> Trace:
    """Return a part of a trace.

    Args:
        trace: The trace; not changed.
        num_sessions: Outermost sessions to keep, from the first, of those long enough; None: all.
        min_turns: Turns that an outermost session must have to be kept.
        max_turns: Turns to keep of each session, from the first; None: all. What a session started
            after the last of them goes too.
        with_children: Whether to keep the sessions that others started.

    Raises:
        ConfigError: If a limit is out of range.
    """
    for name, value, low in (
        ("--sessions", num_sessions, 1),
        ("--min-turns", min_turns, 0),
        ("--max-turns", max_turns, 1),
    ):
        if value is not None and value < low:
            raise ConfigError(f"{name} is {value}", hint=f"{low} or more")
    kept = [session for session in trace.sessions if len(session.turns) >= min_turns]
    return replace(
        trace,
        sessions=tuple(_cut(session, max_turns, with_children) for session in kept[:num_sessions]),
    )


def _cut(session: Session, max_turns: int | None, with_children: bool) -> Session:
    turns, children = session.turns, session.children if with_children else ()
    if max_turns is not None and len(turns) > max_turns:
        turns = turns[:max_turns]
        end_s = turns[-1].start_s
        children = tuple(child for child in children if child.start_s <= end_s)
    return replace(
        session,
        turns=turns,
        children=tuple(_cut(child, max_turns, with_children) for child in children),
    )
