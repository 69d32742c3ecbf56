"""Scales of charts: values to pixels, round ticks, labels that do not overlap; draws nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Steps between ticks, within a power of ten.
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A monotone way from values to pixels.

    Attributes:
        low: Value at `start`; above 0 for a logarithmic scale.
        high: Value at `end`.
        start: Pixel of `low`.
        end: Pixel of `high`; smaller than `start` for an axis that points up.
        is_log: True for equal distances between equal ratios.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Place a value; one outside stays at the edge."""
        value = min(max(value, self.low), self.high)
        if self.high <= self.low:
            return (self.start + self.end) / 2
        if self.is_log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def ticks(high: float, at_most: int = 6) -> list[float]:
    """Choose round values from 0 to the first one that is not below `high`.

    Args:
        high: Largest value that must fit; 0 or less gives an axis from 0 to 1.
        at_most: Values wanted, about.
    """
    if high <= 0:
        return [0.0, 1.0]
    raw = high / max(at_most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in _STEPS if step * power >= raw * (1 - 1e-9))
    # The slack keeps 0.3 from needing a tick at 0.4 because of its last bit.
    return [at * step for at in range(math.ceil(high / step - 1e-9) + 1)]


def clock_ticks(low: float, high: float, at_most: int = 8) -> list[float]:
    """Choose round times within a span.

    Args:
        low: First second.
        high: Last second.
        at_most: Values wanted, about.
    """
    raw = (high - low) / max(at_most - 1, 1)
    if raw <= 0:
        return [low]
    step: float = next((step for step in _CLOCK_STEPS if step >= raw), 0)
    if not step:
        step = 86400 * math.ceil(raw / 86400)
    elif raw < 0.5:
        step = 10.0 ** math.floor(math.log10(raw)) * 5
    first = math.ceil(low / step - 1e-9)
    return [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places apart as little as needed.

    Args:
        places: Pixels, in any order.
        gap: Distance that is kept.
        low: Smallest pixel that may be used.
        high: Largest one; passed only if all of them do not fit.

    Returns:
        Pixels in the order of `places`, which they keep among themselves.
    """
    order = sorted(range(len(places)), key=lambda index: (places[index], index))
    moved = [0.0] * len(places)
    # From the top down each one makes room for itself; from the bottom up what ran out is pushed
    # back.
    edge = low
    for index in order:
        moved[index] = max(places[index], edge)
        edge = moved[index] + gap
    edge = high
    for index in reversed(order):
        moved[index] = min(moved[index], edge)
        edge = moved[index] - gap
    if order and moved[order[0]] < low:
        for rank, index in enumerate(order):
            moved[index] = low + rank * gap
    return moved


def thinned(places: Sequence[float], gap: float, first: Sequence[int] = ()) -> list[int]:
    """Choose labels that keep their distance.

    Args:
        places: Pixels of all labels.
        gap: Distance that is kept.
        first: Places in the list of labels that are chosen before others.

    Returns:
        Indices of the chosen ones, rising.
    """
    chosen: list[int] = []
    rest = [index for index in range(len(places)) if index not in first]
    for index in (*first, *rest):
        if all(abs(places[index] - places[other]) >= gap for other in chosen):
            chosen.append(index)
    return sorted(chosen)
