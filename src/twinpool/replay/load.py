"""Loads: when requests are sent. Open loop at recorded times, closed loop in lanes.

A lane sends the next turn of its session when the answer to the last one is complete and its think
time has passed; with its session done it goes on with the next one. Knows no scheduler.

Source: the closed loop is that of the AgentX client.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from twinpool.errors import ConfigError
from twinpool.replay.units import PrivateKeys, Ticket, tickets
from twinpool.traces.schema import Session, Trace


class Load(Protocol):
    """Says which requests are sent, and when."""

    def next_s(self, step: int | None) -> float | None:
        """Return the virtual time of the next request, or None while there is none to come.

        Args:
            step: The scheduler's next step; None when it has nothing to do until a request comes.
        """
        ...

    def take(self) -> Ticket:
        """Return the next request and forget it; only when `next_s` names a time."""
        ...

    def done(self, ticket: Ticket, now_s: float) -> None:
        """Hear that a request has ended.

        Args:
            ticket: The request.
            now_s: Virtual time of its end.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How sessions become requests.

    Attributes:
        unit_tokens: Tokens of one unit.
        recorded_answers: True when the model is taken to produce the recorded answers.
        gap_cap_s: Longest think time; None for none.
        with_children: True to send what sessions started as well.
    """

    unit_tokens: int
    recorded_answers: bool = False
    gap_cap_s: float | None = None
    with_children: bool = False

    def think_s(self, seconds: float) -> float:
        """Return a think time within the cap."""
        return seconds if self.gap_cap_s is None else min(seconds, self.gap_cap_s)


class OpenLoad:
    """Requests at the times of the trace, whatever becomes of them.

    Args:
        trace: The trace; its sessions say when they begin.
        turns: How they become requests.

    Raises:
        ConfigError: If the trace has no times.
    """

    def __init__(self, trace: Trace, turns: Turns) -> None:
        if not trace.has_times:
            raise ConfigError(
                f"{trace.name} has sessions without a common clock, so there is no open loop",
                hint="replay it in lanes: --lanes N",
            )
        private = PrivateKeys()
        self._queue: list[tuple[float, int, Ticket]] = []
        roots = trace.sessions
        sessions = [s for root in roots for s in (root.walk() if turns.with_children else (root,))]
        for session in sessions:
            for ticket in tickets(
                session,
                unit_tokens=turns.unit_tokens,
                private=private,
                recorded_answers=turns.recorded_answers,
            ):
                when_s = session.start_s + session.turns[ticket.turn].start_s
                self._queue.append((when_s, len(self._queue), ticket))
        heapq.heapify(self._queue)

    def next_s(self, step: int | None) -> float | None:
        """Return the time of the next request; see `Load`."""
        return self._queue[0][0] if self._queue else None

    def take(self) -> Ticket:
        """Return the next request; see `Load`."""
        return heapq.heappop(self._queue)[2]

    def done(self, ticket: Ticket, now_s: float) -> None:
        """Nothing waits for an answer."""


class StepLoad:
    """Requests at the scheduler's steps at which a server got them, whatever time it is then.

    Args:
        trace: A trace that a server recorded.
        turns: How sessions become requests.

    Raises:
        ConfigError: If a request has no step.
    """

    def __init__(self, trace: Trace, turns: Turns) -> None:
        private = PrivateKeys()
        queue: list[tuple[int, float, int, Ticket]] = []
        for session in (s for root in trace.sessions for s in root.walk()):
            for ticket in tickets(
                session,
                unit_tokens=turns.unit_tokens,
                private=private,
                recorded_answers=turns.recorded_answers,
            ):
                if ticket.step is None:
                    raise ConfigError(
                        f"turn {ticket.turn} of session {session.name!r} has no step, so it cannot "
                        "be sent at one",
                        hint="record the trace with twinpool serve --record",
                    )
                when_s = session.start_s + session.turns[ticket.turn].start_s
                queue.append((ticket.step, when_s, len(queue), ticket))
        self._queue = deque(sorted(queue, key=lambda entry: entry[:3]))

    def next_s(self, step: int | None) -> float | None:
        """Return a time long past when the next request's step has come; see `Load`."""
        if not self._queue:
            return None
        return -math.inf if step is None or self._queue[0][0] <= step else math.inf

    def take(self) -> Ticket:
        """Return the next request; see `Load`."""
        return self._queue.popleft()[3]

    def done(self, ticket: Ticket, now_s: float) -> None:
        """Nothing waits for an answer."""


@dataclass(slots=True)
class _Lane:
    """One client: the turns of its session that are still to be sent."""

    session: Session
    waiting: deque[Ticket]


@dataclass(frozen=True, slots=True)
class LaneStart:
    """Where a lane begins.

    Attributes:
        session: Name of its session.
        turn: Index of its first turn.
    """

    session: str
    turn: int


class ClosedLoad:
    """Lanes that send their next turn once the last one has been answered.

    Args:
        trace: The sessions, each used by one lane at a time.
        turns: How they become requests.
        starts: Where each lane begins; further sessions follow in the order of the trace, those
            that lanes began with last.
        is_endless: True to go on with the first session after the last.

    Raises:
        ConfigError: If there is no lane, or one names a session or a turn that is not there.
    """

    def __init__(
        self, trace: Trace, turns: Turns, starts: Sequence[LaneStart], *, is_endless: bool = False
    ) -> None:
        if not starts:
            raise ConfigError("a closed loop needs lanes", hint="use --lanes 1 or more")
        self._turns = turns
        self._private = PrivateKeys()
        self._is_endless = is_endless
        by_name = {session.name: session for session in trace.sessions}
        begun = {start.session for start in starts}
        rest = [s for s in trace.sessions if s.name not in begun]
        self._rest = deque(rest)
        self._queue: list[tuple[float, int, int, Ticket]] = []
        self._lanes: list[_Lane] = []
        self._lane_of: dict[int, int] = {}
        self._num_sent = 0
        for start in starts:
            self._begin(by_name, start)

    def next_s(self, step: int | None) -> float | None:
        """Return the time of the next request; see `Load`."""
        return self._queue[0][0] if self._queue else None

    def take(self) -> Ticket:
        """Return the next request; see `Load`."""
        _, _, lane, ticket = heapq.heappop(self._queue)
        self._lane_of[id(ticket)] = lane
        return ticket

    def done(self, ticket: Ticket, now_s: float) -> None:
        """Let the request's lane think, then send its next turn."""
        number = self._lane_of.pop(id(ticket))
        lane = self._lanes[number]
        if not lane.waiting and not self._next_session(lane):
            return
        following = lane.waiting[0]
        think_s = lane.session.turns[following.turn].think_s if following.turn else 0.0
        self._send(number, now_s + self._turns.think_s(think_s))

    def _begin(self, by_name: dict[str, Session], start: LaneStart) -> None:
        session = by_name.get(start.session)
        if session is None:
            raise ConfigError(
                f"a lane names session {start.session!r}, which is not in the trace",
                hint="check --lanes-file and --min-turns",
            )
        if not 0 <= start.turn < len(session.turns):
            raise ConfigError(
                f"a lane starts at turn {start.turn} of {start.session}, which has "
                f"{len(session.turns)} turns"
            )
        waiting = deque(t for t in self._tickets(session) if t.turn >= start.turn)
        self._lanes.append(_Lane(session, waiting))
        if waiting or self._next_session(self._lanes[-1]):
            self._send(len(self._lanes) - 1, 0.0)

    def _send(self, number: int, when_s: float) -> None:
        ticket = self._lanes[number].waiting.popleft()
        heapq.heappush(self._queue, (when_s, self._num_sent, number, ticket))
        self._num_sent += 1

    def _next_session(self, lane: _Lane) -> bool:
        """Give a lane the next session that has anything to send."""
        if self._is_endless:
            self._rest.append(lane.session)
        while self._rest:
            lane.session = self._rest.popleft()
            lane.waiting = deque(self._tickets(lane.session))
            if lane.waiting:
                return True
        return False

    def _tickets(self, session: Session) -> Iterator[Ticket]:
        return tickets(
            session,
            unit_tokens=self._turns.unit_tokens,
            private=self._private,
            recorded_answers=self._turns.recorded_answers,
        )


def seeded_starts(trace: Trace, num_lanes: int, seed: int) -> list[LaneStart]:
    """Draw a session for each lane and a turn at which it begins.

    Args:
        trace: The sessions.
        num_lanes: How many lanes there are.
        seed: Decides the draw, and nothing else does.

    Raises:
        ConfigError: If there are more lanes than sessions.
    """
    usable = [session for session in trace.sessions if session.turns]
    if num_lanes > len(usable):
        raise ConfigError(
            f"{num_lanes} lanes need as many sessions, and the trace has {len(usable)}",
            hint="use fewer lanes, or lower --min-turns",
        )
    draw = random.Random(seed)
    chosen = draw.sample(usable, num_lanes)
    return [LaneStart(session.name, draw.randrange(len(session.turns))) for session in chosen]
