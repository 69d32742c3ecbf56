"""The order in which the requests of a trace arrive.

Knows no scheduler: a replay may send the same turns in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twinpool.traces.schema import Session, Trace, Turn


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it arrived.

    Attributes:
        at_s: Seconds from the start of the trace; of its outermost session where sessions have no
            time of their own.
        session: The session that it is a turn of.
        index: Which turn of the session it is, from 0.
    """

    at_s: float
    session: Session
    index: int

    @property
    def turn(self) -> Turn:
        """The turn itself."""
        return self.session.turns[self.index]


def arrivals(trace: Trace) -> list[Arrival]:
    """Return all requests of a trace in the order of their arrival.

    Args:
        trace: The trace. With times, all requests are sorted by time. Without, outermost sessions
            come one after the other, and within one its own requests and those of the sessions that
            it started are sorted by time. Requests of one time keep the order of the source.
    """
    families = [list(_family(session, 0.0)) for session in trace.sessions]
    if trace.has_times:
        families = [[arrival for family in families for arrival in family]]
    return [
        arrival for family in families for arrival in sorted(family, key=lambda each: each.at_s)
    ]


def _family(session: Session, offset_s: float) -> Iterator[Arrival]:
    start_s = offset_s + session.start_s
    for index, turn in enumerate(session.turns):
        yield Arrival(start_s + turn.start_s, session, index)
    for child in session.children:
        yield from _family(child, start_s)
