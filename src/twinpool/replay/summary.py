"""The summary of a replay: rates, latencies and where the tokens went, from its records.

Metrics are formulas over `ServedRequest`s; knows no scheduler and no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinpool.memory.tree import RadixTree
from twinpool.replay.records import ServedRequest

PERCENTILES = (50, 90, 99)
# Turns are told apart up to here, then in growing groups.
_TURN_EDGES = (0, 1, 2, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity over requests, in seconds.

    Attributes:
        mean: Mean.
        p50: Median.
        p90: 90th percentile.
        p99: 99th percentile.
        max: Largest.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGroup:
    """Requests of some turns of their sessions.

    Attributes:
        first: First turn of the group, from 0.
        last: Last turn of it; None for all further ones.
        requests: How many there were.
        hit_rate: Their cached prompt tokens by prompt tokens.
    """

    first: int
    last: int | None
    requests: int
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What came of a replay; times are virtual.

    Attributes:
        requests: Requests that were served to the end.
        duration_s: From the start to the end of the run.
        prompt_tokens: Prompt tokens of served requests.
        cached_tokens: The part of them that came from the prefix cache.
        missed_tokens: The part whose KV was there and whose state was missing.
        reusable_tokens: The part that a cache without limits would have had.
        output_tokens: Tokens of answers of served requests.
        hit_rate: `cached_tokens / prompt_tokens`, 0 without prompts.
        reusable_rate: `reusable_tokens / prompt_tokens`.
        output_tokens_per_s: `output_tokens / duration_s`.
        ttft_s: Arrival to first token.
        tpot_s: Seconds per token after the first, of requests with more than one.
        e2e_s: Arrival to last token.
        wait_s: Arrival to admission.
        by_turn: Hit rate by turn.
        retractions: How often requests went back to the queue.
    """

    requests: int
    duration_s: float
    prompt_tokens: int
    cached_tokens: int
    missed_tokens: int
    reusable_tokens: int
    output_tokens: int
    hit_rate: float
    reusable_rate: float
    output_tokens_per_s: float
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    wait_s: Spread
    by_turn: tuple[TurnGroup, ...]
    retractions: int

    @property
    def regretted_tokens(self) -> int:
        """Prompt tokens that were evicted, or never kept, and then wanted again."""
        return max(self.reusable_tokens - self.cached_tokens, 0)


def summarise(
    served: Sequence[ServedRequest],
    duration_s: float,
    unfinished: Sequence[ServedRequest] = (),
) -> Summary:
    """Sum a replay up.

    Args:
        served: Requests that ended.
        duration_s: Virtual seconds of the run; 0 gives rates of 0.
        unfinished: What had been admitted and not ended when the run was cut short, with that
            moment as its end (and as its first token, where it had none): others may have reused
            what it left, nothing else of it counts.
    """
    prompt = sum(request.input_tokens for request in served)
    cached = sum(request.cached_tokens for request in served)
    output = sum(request.output_tokens for request in served)
    reusable = sum(reusable_tokens([*served, *unfinished])[: len(served)])
    long = [request for request in served if request.output_tokens > 1]
    return Summary(
        requests=len(served),
        duration_s=duration_s,
        prompt_tokens=prompt,
        cached_tokens=cached,
        missed_tokens=sum(request.missed_tokens for request in served),
        reusable_tokens=reusable,
        output_tokens=output,
        hit_rate=cached / prompt if prompt else 0.0,
        reusable_rate=reusable / prompt if prompt else 0.0,
        output_tokens_per_s=output / duration_s if duration_s else 0.0,
        ttft_s=_spread([r.first_token_s - r.arrival_s for r in served]),
        tpot_s=_spread([(r.finished_s - r.first_token_s) / (r.output_tokens - 1) for r in long]),
        e2e_s=_spread([r.finished_s - r.arrival_s for r in served]),
        wait_s=_spread([r.admitted_s - r.arrival_s for r in served]),
        by_turn=_by_turn(served),
        retractions=sum(request.retractions for request in served),
    )


def reusable_tokens(served: Sequence[ServedRequest]) -> list[int]:
    """Say what a cache without limits would have had of each prompt when it was admitted.

    Args:
        served: Requests; a prompt is known from its first token on, an answer from its end on.

    Returns:
        Tokens, one number per request in the given order.
    """
    tree = RadixTree(page_size=1, needs_state=False)
    events: list[tuple[float, int, int]] = []
    for place, request in enumerate(served):
        # Of equal times the look-up comes last: what ends when another begins is known to it.
        events += [
            (request.admitted_s, 2, place),
            (request.first_token_s, 0, place),
            (request.finished_s, 1, place),
        ]
    heapq.heapify(events)
    found = [0] * len(served)
    while events:
        _, kind, place = heapq.heappop(events)
        request = served[place]
        prompt = request.path[: request.prompt_units]
        if kind == 2:
            units = tree.match(request.namespace, prompt).depth
            found[place] = min(units * request.unit_tokens, request.input_tokens)
        else:
            path = prompt if kind == 0 else request.path
            rows = np.zeros(len(path), dtype=np.int32)
            tree.insert(tree.root(request.namespace), path, rows, [])
    return found


def _by_turn(served: Sequence[ServedRequest]) -> tuple[TurnGroup, ...]:
    groups = []
    for at, first in enumerate(_TURN_EDGES):
        last = _TURN_EDGES[at + 1] - 1 if at + 1 < len(_TURN_EDGES) else None
        chosen = [r for r in served if first <= r.turn and (last is None or r.turn <= last)]
        prompt = sum(request.input_tokens for request in chosen)
        if prompt:
            cached = sum(request.cached_tokens for request in chosen)
            groups.append(
                TurnGroup(first=first, last=last, requests=len(chosen), hit_rate=cached / prompt)
            )
    return tuple(groups)


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(mean=0.0, p50=0.0, p90=0.0, p99=0.0, max=0.0)
    # The value at a rank that was observed, not one between two: simulations compare exactly.
    p50, p90, p99 = np.percentile(values, PERCENTILES, method="inverted_cdf")
    return Spread(
        mean=float(np.mean(values)), p50=float(p50), p90=float(p90), p99=float(p99), max=max(values)
    )
