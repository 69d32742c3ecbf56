"""Replay speed: requests and tokens of a trace replayed per second on one core.

Ratios within the run: virtual seconds by real ones, and jumping over steps against stepping through
them. Workloads are the committed sample of 48 agent sessions and generated chats.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.roofline import describe_machine
from twinpool.replay.cost import GivenRates
from twinpool.replay.driver import Driver
from twinpool.replay.load import LaneStart, Turns
from twinpool.replay.run import Outcome, Setup, run_replay
from twinpool.settings.resolve import resolve
from twinpool.settings.wiring import PoolCounts
from twinpool.traces.read import read_trace
from twinpool.traces.schema import Trace
from twinpool.traces.shapes import ChatShape
from twinpool.traces.synthesis import make_chat

AGENTS = Path(__file__).parents[1] / "tests" / "data" / "agentx"
RATES = GivenRates(prefill_tokens_per_s=30_000.0, decode_base_s=0.012, decode_per_request_s=0.0005)


def agents(duration_s: float) -> Setup:
    """48 lanes of recorded agent sessions on the pools of a published deployment."""
    lines = (AGENTS / "lanes48.tsv").read_text().splitlines()[1:]
    starts = [LaneStart(name, int(turn)) for name, turn in (line.split("\t")[:2] for line in lines)]
    trace = read_trace(AGENTS / "lanes48.jsonl.gz")
    turns = Turns(unit_tokens=64, gap_cap_s=10.0)
    return _setup(trace, turns, rows=8_131_328, slots=247, starts=starts, duration_s=duration_s)


def chats(num_sessions: int) -> Setup:
    """Generated chats at their recorded times."""
    trace = make_chat(ChatShape(sessions=num_sessions, rate=4.0), seed=0)
    return _setup(trace, Turns(unit_tokens=64), rows=1_000_000, slots=400)


def _setup(trace: Trace, turns: Turns, *, rows: int, slots: int, **more: Any) -> Setup:
    resolved = resolve({"chunked_prefill_size": -1, "radix_eviction_policy": "lru"})
    counts = PoolCounts(
        num_rows=rows, num_slots=slots, max_running_requests=64, context_length=1_048_576
    )
    return Setup(trace=trace, resolved=resolved, counts=counts, cost=RATES, turns=turns, **more)


def timed(setup: Setup, runs: int) -> tuple[float, Outcome]:
    """Return the best time of several runs, and what came of one."""
    best, outcome = float("inf"), None
    for _ in range(runs):
        began = time.perf_counter()
        outcome = run_replay(setup)
        best = min(best, time.perf_counter() - began)
    assert outcome is not None
    return best, outcome


def figures(setup: Setup, runs: int) -> dict[str, Any]:
    """Measure one workload."""
    seconds, outcome = timed(setup, runs)
    summary = outcome.summary
    return {
        "requests": summary.requests,
        "seconds": round(seconds, 2),
        "requests_per_s": round(summary.requests / seconds),
        "prompt_tokens_per_s": round(summary.prompt_tokens / seconds),
        "virtual_by_real": round(summary.duration_s / seconds),
        "steps": outcome.snapshot.num_steps,
        "hit_rate": round(summary.hit_rate, 3),
    }


def main(argv: list[str] | None = None) -> None:
    """Measure and print; `argv` are the flags, those of the process when None."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--duration", type=float, default=1800.0)
    parser.add_argument("--chats", type=int, default=300)
    wanted = parser.parse_args(argv)
    found: dict[str, Any] = {
        "machine": describe_machine(),
        "agents": figures(agents(wanted.duration), wanted.runs),
        "chats": figures(chats(wanted.chats), wanted.runs),
    }
    short = agents(120.0)
    jumping, _ = timed(short, wanted.runs)
    limit, Driver.max_jump_tokens = Driver.max_jump_tokens, 1
    stepping, _ = timed(short, 1)
    Driver.max_jump_tokens = limit
    found["jumping_by_stepping"] = round(stepping / jumping, 1)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
