"""The bound on the hit rate: how long it takes on large schedules, and what leaving out rows costs.

Schedules come from a crude server (one prefill at a time, a fixed time per token, a cap on what
runs): here they need only have the size and the sharing of real ones.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from twinpool.errors import CapacityError
from twinpool.replay.bound import Bound, ByteBudget, hit_bound
from twinpool.replay.records import ServedRequest
from twinpool.traces.agentx import read_sessions
from twinpool.traces.schema import BlockArray, Turn

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "agentx"
UNIT_TOKENS = 64
PREFILL_TOKENS_S = 30_000
DECODE_S = 0.012
MAX_RUNNING = 16
MAX_THINK_S = 10.0


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Measure, print a table and return the figures.

    Args:
        argv: Nothing is understood yet.

    Returns:
        Seconds by name of the case.
    """
    figures: dict[str, float] = {}
    lanes = lane_schedule(3600.0)
    for units, slots in ((140_000, 192), (100_000, 429), (80_000, 60), (80_000, 24)):
        _measure(figures, "lanes48", lanes, {"capacity_units": units, "state_slots": slots})
    budget = ByteBudget(100_000 * 800_000, 800_000, 20_000_000)
    _measure(figures, "lanes48", lanes, {"one_budget": budget})
    arrivals = arrival_schedule(12_000)
    for units, slots in ((60_000, 1000), (25_000, 120)):
        for max_rows in (1000, 4000, 100_000):
            limits = {"capacity_units": units, "state_slots": slots, "max_rows": max_rows}
            _measure(figures, "arrivals", arrivals, limits)
    return figures


def _measure(
    figures: dict[str, float], name: str, requests: list[ServedRequest], limits: dict[str, object]
) -> None:
    text = " ".join(
        "/".join(map(str, limit)) if isinstance(limit, tuple) else str(limit)
        for limit in limits.values()
    )
    began = time.perf_counter()
    try:
        bound: Bound = hit_bound(requests, **limits)  # type: ignore[arg-type]
    except CapacityError as error:
        print(f"{name} {text}: {error.message}")
        return
    seconds = figures[f"{name} {text}"] = time.perf_counter() - began
    print(
        f"{name:<9} {len(requests):>6} requests  {text:<28} at most {bound.hit_rate:.4f}"
        f"  {seconds:6.1f} s  {bound.num_rows:>6} rows{'' if bound.is_exact else '  (coarse)'}",
        flush=True,
    )


@dataclass
class _Server:
    """Serves in order of arrival and writes the records."""

    records: list[ServedRequest] = field(default_factory=list)
    free_s: float = 0.0
    ends: list[float] = field(default_factory=list)
    next_private: int = -1

    def serve(
        self, name: str, known: BlockArray, cached: int, arrival_s: float, turn: Turn
    ) -> float:
        """Serve one request and return when it ends."""
        admitted_s = max(arrival_s, self.free_s)
        if len(self.ends) >= MAX_RUNNING:
            admitted_s = max(admitted_s, heapq.heappop(self.ends))
        computed = max(turn.input_tokens - cached * UNIT_TOKENS, UNIT_TOKENS)
        self.free_s = first_token_s = admitted_s + computed / PREFILL_TOKENS_S
        finished_s = first_token_s + turn.output_tokens * DECODE_S
        heapq.heappush(self.ends, finished_s)
        total = -(-(turn.input_tokens + turn.output_tokens) // UNIT_TOKENS)
        private = np.arange(self.next_private, self.next_private - total + len(known), -1)
        self.next_private -= len(private)
        self.records.append(
            ServedRequest(
                index=len(self.records),
                session=name,
                turn=0,
                namespace=name,
                path=np.concatenate([known, private.astype(np.int32)]),
                prompt_units=-(-turn.input_tokens // UNIT_TOKENS),
                unit_tokens=UNIT_TOKENS,
                input_tokens=turn.input_tokens,
                output_tokens=turn.output_tokens,
                cached_tokens=cached * UNIT_TOKENS,
                missed_tokens=0,
                arrival_s=arrival_s,
                admitted_s=admitted_s,
                first_token_s=first_token_s,
                finished_s=finished_s,
            )
        )
        return finished_s


def lane_schedule(duration_s: float) -> list[ServedRequest]:
    """Serve the 48 recorded lanes in a closed loop; a lane that is done takes another session."""
    sessions = {
        session.name: session.turns
        for session in read_sessions(FOLDER / "lanes48.jsonl.gz", is_run_length=True)
    }
    lines = (FOLDER / "lanes48.tsv").read_text().splitlines()[1:]
    starts = [(line.split("\t")[0], int(line.split("\t")[1])) for line in lines]
    names = [name for name, _ in starts]

    def turns(lane: int) -> Iterator[tuple[str, Turn]]:
        at, start = lane, starts[lane][1]
        for lap in range(1000):
            for turn in sessions[names[at]][start:]:
                if turn.input_tokens and turn.output_tokens:
                    yield f"{names[at]} {lane} {lap}", turn
            at, start = (at + 7) % len(names), 0

    server = _Server()
    scripts = [turns(lane) for lane in range(len(names))]
    last: dict[str, BlockArray] = {}
    queue = [(0.0, lane) for lane in range(len(names))]
    while queue:
        now_s, lane = heapq.heappop(queue)
        name, turn = next(scripts[lane])
        cached = _num_shared(last.get(name, turn.blocks[:0]), turn.blocks)
        end_s = server.serve(name, turn.blocks, cached, now_s, turn)
        last[name] = turn.blocks
        if end_s < duration_s:
            heapq.heappush(queue, (end_s + min(turn.think_s, MAX_THINK_S), lane))
    return server.records


def arrival_schedule(num_requests: int) -> list[ServedRequest]:
    """Serve conversations that arrive by chance and share a few system prompts."""
    rng = np.random.default_rng(0)
    server = _Server()
    talks: list[BlockArray] = []
    for number in range(num_requests):
        if not talks or rng.random() < 0.4:
            system = int(rng.zipf(1.5)) % 64
            before = np.arange(system * 100, system * 100 + 8 + system, dtype=np.int32)
        else:
            before = talks[-1 - int(rng.zipf(1.2)) % len(talks)]
        start = 1_000_000 + number * 1000
        length = int(rng.lognormal(3.0, 1.0)) % 900 + 1
        known = np.concatenate([before, np.arange(start, start + length, dtype=np.int32)])
        known = known[:2000]
        talks.append(known)
        tokens = len(known) * UNIT_TOKENS
        turn = Turn(
            start_s=0.0,
            think_s=0.0,
            blocks=known,
            input_tokens=tokens,
            output_tokens=int(rng.integers(16, 512)),
        )
        server.serve("", known, len(before), number * 0.3, turn)
    return server.records


def _num_shared(first: BlockArray, second: BlockArray) -> int:
    length = min(len(first), len(second))
    same = first[:length] == second[:length]
    return length if same.all() else int(same.argmin())


if __name__ == "__main__":
    main()
