"""Closed-loop lanes over recorded agent sessions, scaled to one token per block of 64 tokens.

Each lane sends the next turn of its session as soon as the one before has ended. What a request
samples is what the next turn sends again, so that turns share as much as they did when recorded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from simulation import Rig
from twinpool.traces.agentx import read_sessions
from twinpool.traces.schema import Turn

FOLDER = Path(__file__).parent / "data" / "agentx"


@cache
def recorded_lanes() -> tuple[tuple[str, tuple[Turn, ...]], ...]:
    """Return `(session, its turns from where the lane starts)` of all 48 lanes."""
    sessions = {
        session.name: session
        for session in read_sessions(FOLDER / "lanes48.jsonl.gz", is_run_length=True)
    }
    lines = (FOLDER / "lanes48.tsv").read_text().splitlines()[1:]
    lanes = [line.split("\t")[:2] for line in lines]
    return tuple((name, sessions[name].turns[int(start) :]) for name, start in lanes)


@dataclass
class LaneRun:
    """Drives a rig through the lanes.

    Attributes:
        rig: The scheduler and its executor.
        max_turns: Turns of each lane; None for all.
        most_waiting: The longest queue seen.
    """

    rig: Rig
    max_turns: int | None = None
    most_waiting: int = 0
    num_requests: int = 0
    num_prompt_tokens: int = 0
    _scripts: dict[int, np.ndarray] = field(default_factory=dict)

    def to_the_end(self, *, audit: bool) -> None:
        """Run all lanes until every turn has ended."""
        self.rig.executor.choose = self._choose
        todo = [list(self._turns(turns)) for _, turns in recorded_lanes()]
        live: dict[int, int] = {}
        for lane in range(len(todo)):
            self._send(lane, todo, live)
        while self.rig.scheduler.has_work:
            self.rig.step(audit=audit)
            self.most_waiting = max(self.most_waiting, self.rig.scheduler.num_waiting)
            for number in [number for number in live if number in self.rig.ended]:
                self._send(live.pop(number), todo, live)

    def log_digest(self) -> str:
        """Digest of the decision log so far."""
        return hashlib.sha256(b"".join(self.rig.lines)).hexdigest()

    def _turns(self, turns: tuple[Turn, ...]):
        followed = [(turn, after) for turn, after in zip(turns, (*turns[1:], None), strict=True)]
        return [pair for pair in followed if len(pair[0].blocks)][: self.max_turns]

    def _send(self, lane: int, todo: list, live: dict[int, int]) -> None:
        if not todo[lane]:
            return
        turn, after = todo[lane].pop(0)
        prompt = turn.blocks
        answer = max(1, round(turn.output_tokens / 64))
        number = self.rig.add(prompt, answer, namespace=recorded_lanes()[lane][0])
        self.num_requests += 1
        self.num_prompt_tokens += len(prompt)
        goes_on = (
            after is not None
            and len(after.blocks) > len(prompt)
            and np.array_equal(after.blocks[: len(prompt)], prompt)
        )
        self._scripts[number] = after.blocks if goes_on else prompt
        live[number] = lane

    def _choose(self, tokens: np.ndarray, number: int) -> int:
        script = self._scripts[number]
        # Past the next turn's prompt: something that nobody sends again.
        return int(script[len(tokens)]) if len(tokens) < len(script) else -(number + 1)
