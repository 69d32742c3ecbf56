"""Small workloads and replays for tests: sessions of blocks, pools of a few rows, round rates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from twinpool.replay.cost import GivenRates
from twinpool.replay.load import LaneStart, Turns
from twinpool.replay.run import Outcome, Setup, run_replay
from twinpool.settings.resolve import resolve
from twinpool.settings.wiring import PoolCounts
from twinpool.traces.schema import Session, Trace, Turn

BLOCK = 16
RATES = GivenRates(prefill_tokens_per_s=1000.0, decode_base_s=0.01, decode_per_request_s=0.001)


def session(
    name: str, turns: Sequence[tuple[int, int]], *, think_s: float = 1.0, start_s: float = 0.0
) -> Session:
    """Make a session whose prompts grow: each is `(prompt tokens, answer tokens)`."""
    made = []
    sent_s = 0.0
    for input_tokens, output_tokens in turns:
        made.append(
            Turn(
                start_s=sent_s,
                think_s=think_s if made else 0.0,
                blocks=np.arange(input_tokens // BLOCK, dtype=np.int32),
                input_tokens=input_tokens,
                output_tokens=output_tokens,
            )
        )
        sent_s += 10.0
    return Session(
        name=name, block_tokens=BLOCK, turns=tuple(made), start_s=start_s, namespace=name
    )


def random_trace(
    seed: int, *, num_sessions: int = 4, has_times: bool = True, rewrites: bool = True
) -> Trace:
    """Make growing sessions of random lengths, some with whole blocks and some without.

    With `rewrites` some prompts leave out a part of the answer before them.
    """
    draw = random.Random(seed)
    sessions = []
    for number in range(num_sessions):
        length, turns = 0, []
        for _ in range(draw.randint(1, 5)):
            length += draw.choice([1, 7, 16, 32, 33, 80])
            turns.append((length, draw.choice([1, 2, 5, 16, 17, 40])))
            length += draw.choice([0, turns[-1][1]]) if rewrites else turns[-1][1]
        sessions.append(
            session(
                f"s{number}",
                turns,
                think_s=draw.choice([0.0, 0.5, 3.0]),
                start_s=draw.choice([0.0, 0.3, 2.0]),
            )
        )
    return Trace(name="t", format="made", sessions=tuple(sessions), has_times=has_times)


def replay(
    trace: Trace,
    *,
    rows: int = 4096,
    slots: int = 32,
    lanes: Sequence[LaneStart] | None = None,
    unit: int = BLOCK,
    decisions: Callable[[bytes], None] | None = None,
    audit: bool = True,
    turns: dict[str, Any] | None = None,
    setup: dict[str, Any] | None = None,
    max_running: int | None = None,
    **flags: Any,
) -> Outcome:
    """Replay a trace on pools of `rows` tokens and `slots` slots."""
    resolved = resolve({"chunked_prefill_size": -1, **flags})
    counts = PoolCounts(
        num_rows=rows,
        num_slots=slots,
        max_running_requests=max_running or slots,
        context_length=100_000,
    )
    return run_replay(
        Setup(
            trace=trace,
            resolved=resolved,
            counts=counts,
            cost=RATES,
            turns=Turns(unit_tokens=unit, **(turns or {})),
            starts=lanes,
            **(setup or {}),
        ),
        decisions=decisions,
        audit=audit,
    )
