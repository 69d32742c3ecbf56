"""The time axis that charts of a run share: samples thinned, times to pixels, hover slices.

Knows samples by their time alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from twinpool.replay.report import svg
from twinpool.replay.report.axes import Scale, clock_ticks
from twinpool.replay.report.document import Moment, Run
from twinpool.replay.report.markup import Markup

WIDTH = 520
LEFT, RIGHT = 46.0, 494.0
# More samples than this are closer together than the pixels of a column.
MAX_MOMENTS = 400
_UNITS = ((172_800.0, 86_400, "d"), (7_200.0, 3600, "h"), (120.0, 60, "min"), (0.0, 1, "s"))


def thinned_moments(run: Run) -> tuple[tuple[Moment, ...], int]:
    """Take every k-th sample, so that as many as can be told apart are left.

    Args:
        run: A run; its samples rise in time.

    Returns:
        The samples, and k.
    """
    every = max(1, -(-len(run.moments) // MAX_MOMENTS))
    return run.moments[::every], every


def time_scale(runs: Sequence[Run]) -> Scale:
    """Choose one axis for all runs, so that they compare at a glance."""
    times = [moment.time_s for run in runs for moment in run.moments]
    low, high = min(times), max(times)
    # Runs begin at 0, but for the first step; a run that was watched late keeps its own start.
    if 0 <= low < 0.05 * high:
        low = 0.0
    return Scale(low=low, high=max(high, low + 1.0), start=LEFT, end=RIGHT)


def time_foot(scale: Scale, y: float) -> Markup:
    """Draw the time axis below a chart, with its unit."""
    span = scale.high - scale.low
    _, size, unit = next(entry for entry in _UNITS if span >= entry[0])
    values = clock_ticks(scale.low, scale.high)
    # A label at the very end leaves no room for the unit; that one carries it.
    labels = [f"{value / size:g}" for value in values]
    labels[-1] = f"{labels[-1]} {unit}"
    return svg.foot_labels(scale, values, y, labels)


def edges(scale: Scale, moments: Sequence[Moment]) -> list[float]:
    """Say where the time that each sample stands for begins and ends.

    Args:
        scale: Time to x.
        moments: Samples by rising time.

    Returns:
        Pixels, one more than samples.
    """
    return [scale(moment.time_s) for moment in moments] + [scale.end]
