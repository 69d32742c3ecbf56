"""Hit rates of two replays on the requests that both of them served.

What one cannot serve drops out of its own hit rate: a cell that lets few requests run serves first
turns for the most part, which share most of their short prompts. On the same requests, only how
much of them was reused is compared. Formulas over `ServedRequest`s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from twinpool.replay.records import ServedRequest

# Prompt and cached tokens by session, turn and how often that was served before, as lanes without
# an end begin the corpus anew.
Served = dict[tuple[str, int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SameRequests:
    """Two replays on what both served.

    Attributes:
        requests: How many requests that is.
        hit_rate: Cached by prompt tokens of them, of the first replay; 0 without any.
        other_hit_rate: The same of the second.
    """

    requests: int
    hit_rate: float
    other_hit_rate: float


def served_tokens(served: Sequence[ServedRequest]) -> Served:
    """Return the prompt and cached tokens of each request, in whichever order they ended."""
    times: Counter[tuple[str, int]] = Counter()
    found: Served = {}
    for request in sorted(served, key=lambda each: each.index):
        turn = (request.session, request.turn)
        found[*turn, times[turn]] = (request.input_tokens, request.cached_tokens)
        times[turn] += 1
    return found


def on_same_requests(first: Served, second: Served) -> SameRequests:
    """Compare two replays of one load on the requests that both served."""
    both = first.keys() & second.keys()
    return SameRequests(len(both), _hit_rate(first, both), _hit_rate(second, both))


def _hit_rate(served: Served, keys: set[tuple[str, int, int]]) -> float:
    prompt = sum(served[key][0] for key in keys)
    return sum(served[key][1] for key in keys) / prompt if prompt else 0.0
