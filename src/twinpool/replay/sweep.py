"""Sweeps: which splits to try, where the cliffs are, and which split to recommend.

Pure functions over the results of cells; knows no process and no replay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from twinpool.errors import ConfigError

# A split is as good as the best one within these.
PLATEAU_THROUGHPUT = 0.98
PLATEAU_HIT_RATE = 0.01
# A fall of the hit rate between neighbours counts as a cliff from here on.
CLIFF = 0.1
COARSE_CELLS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One split and what came of it, within one group of equal policies.

    Attributes:
        state_slots: Slots of the state pool.
        hit_rate: Cached prompt tokens by prompt tokens.
        output_tokens_per_s: Throughput.
    """

    state_slots: int
    hit_rate: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """A fall between two neighbouring splits on the way down from the best one.

    Attributes:
        side: `kv`: more slots leave too little KV; `state`: fewer slots hold too few checkpoints.
        from_slots: Slots before the fall, seen from the best split.
        to_slots: Slots after it.
        hit_rate_from: Hit rate before it.
        hit_rate_to: Hit rate after it.
    """

    side: str
    from_slots: int
    to_slots: int
    hit_rate_from: float
    hit_rate_to: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A split to run with.

    Attributes:
        state_slots: Slots to pin.
        low: Fewest slots that are as good as the best split.
        high: Most slots that are.
        why: One sentence.
    """

    state_slots: int
    low: int
    high: int
    why: str


def coarse_slots(low: int, high: int, count: int = COARSE_CELLS) -> list[int]:
    """Spread numbers of slots evenly by factor.

    Args:
        low: Fewest slots, 1 or more.
        high: Most slots.
        count: How many, 2 or more.

    Raises:
        ConfigError: If there is no room between them.
    """
    if high < low:
        raise ConfigError(
            f"the bytes hold {high} state slots beside one page of KV, and one request needs {low}",
            hint="give the pools more memory",
        )
    steps = [low * (high / low) ** (step / (count - 1)) for step in range(count)]
    return sorted({min(max(round(step), low), high) for step in steps})


def finer_slots(points: Sequence[Point]) -> list[int]:
    """Choose splits between the best one and its neighbours that have not been tried.

    Args:
        points: What has been tried, in any order.
    """
    tried = sorted(points, key=lambda point: point.state_slots)
    if not tried:
        return []
    best = best_of(tried)
    at = next(i for i, point in enumerate(tried) if point.state_slots == best.state_slots)
    found = []
    for other in (at - 1, at + 1):
        if 0 <= other < len(tried):
            middle = round(math.sqrt(tried[at].state_slots * tried[other].state_slots))
            if middle not in (tried[at].state_slots, tried[other].state_slots):
                found.append(middle)
    return sorted(found)


def best_of(points: Sequence[Point]) -> Point:
    """Return the split with the highest throughput; of equal ones the better hit rate wins."""
    return max(points, key=lambda p: (p.output_tokens_per_s, p.hit_rate, -p.state_slots))


def cliffs(points: Sequence[Point]) -> tuple[Cliff, ...]:
    """Find the steepest fall of the hit rate on either side of the best split.

    Args:
        points: Splits of one group, in any order.

    Returns:
        At most one cliff per side, the state side first.
    """
    tried = sorted(points, key=lambda point: point.state_slots)
    if not tried:
        return ()
    best = best_of(tried)
    at = next(i for i, point in enumerate(tried) if point.state_slots == best.state_slots)
    sides = (("state", tried[at::-1]), ("kv", tried[at:]))
    found = []
    for side, way in sides:
        falls = [(a.hit_rate - b.hit_rate, a, b) for a, b in pairwise(way)]
        steepest = max(falls, key=lambda fall: fall[0], default=None)
        if steepest is not None and steepest[0] >= CLIFF:
            _, a, b = steepest
            found.append(
                Cliff(
                    side=side,
                    from_slots=a.state_slots,
                    to_slots=b.state_slots,
                    hit_rate_from=a.hit_rate,
                    hit_rate_to=b.hit_rate,
                )
            )
    return tuple(found)


def recommend(points: Sequence[Point]) -> Recommendation:
    """Recommend the middle of the plateau around the best split.

    The plateau are the neighbours that reach nearly the best throughput and hit rate. In its
    middle the workload may grow in either way before a cliff is reached.

    Args:
        points: Splits of one group, at least one.
    """
    tried = sorted(points, key=lambda point: point.state_slots)
    best = best_of(tried)
    at = next(i for i, point in enumerate(tried) if point.state_slots == best.state_slots)

    def is_as_good(point: Point) -> bool:
        return (
            point.output_tokens_per_s >= PLATEAU_THROUGHPUT * best.output_tokens_per_s
            and point.hit_rate >= best.hit_rate - PLATEAU_HIT_RATE
        )

    low = high = at
    while low and is_as_good(tried[low - 1]):
        low -= 1
    while high + 1 < len(tried) and is_as_good(tried[high + 1]):
        high += 1
    plateau = tried[low : high + 1]
    middle = math.sqrt(plateau[0].state_slots * plateau[-1].state_slots)
    # One that was tried: what is recommended has been seen.
    chosen = min(plateau, key=lambda point: abs(math.log(point.state_slots / middle)))
    why = (
        f"of the splits tried, {plateau[0].state_slots} to {plateau[-1].state_slots} slots are "
        f"within {1 - PLATEAU_THROUGHPUT:.0%} of the best throughput; this is their middle"
        if len(plateau) > 1
        else "the best of the splits tried; its neighbours are worse"
    )
    return Recommendation(
        state_slots=chosen.state_slots,
        low=plateau[0].state_slots,
        high=plateau[-1].state_slots,
        why=why,
    )
