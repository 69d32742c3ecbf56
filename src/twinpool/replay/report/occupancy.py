"""Occupancy of both pools over time as stacked bands, below running and waiting requests.

Draws samples; knows nothing of how they were taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from twinpool.replay.report import numerals, svg, time_axis
from twinpool.replay.report.axes import Scale, ticks
from twinpool.replay.report.document import POOL_PARTS, Moment, Run
from twinpool.replay.report.markup import Markup, short, tag

_POOLS = {"kv": "KV pool", "state": "State pool"}
_LOAD_TOP, _LOAD_FOOT = 40.0, 120.0
_POOL_HEIGHT, _POOL_GAP = 118.0, 40.0


def occupancy_chart(run: Run, runs: Sequence[Run]) -> Markup:
    """Draw one run.

    Args:
        run: The run; with one sample at least.
        runs: All runs that stand beside it, which share its axes.
    """
    moments, _ = time_axis.thinned_moments(run)
    time = time_axis.time_scale(runs)
    pools = [pool for pool in _POOLS if any(pool in moment.pools for moment in moments)]
    foot = _LOAD_FOOT + len(pools) * (_POOL_GAP + _POOL_HEIGHT)
    marks = _load(moments, time, runs)
    for at, pool in enumerate(pools):
        top = _LOAD_FOOT + _POOL_GAP + at * (_POOL_GAP + _POOL_HEIGHT)
        marks += _bands(pool, [moment for moment in moments if pool in moment.pools], time, top)
    marks.append(time_axis.time_foot(time, foot))
    marks.append(_slices(moments, time, foot))
    return svg.figure(
        f"occupancy-{run.name}",
        (time_axis.WIDTH, round(foot + 26)),
        f"Requests and occupancy of both pools over time, {run.name}: {run.cell.label}",
        describe(run),
        *marks,
    )


def describe(run: Run) -> str:
    """Say in words how full the pools were on average."""
    parts = [f"{_mean([moment.running for moment in run.moments]):.1f} requests running"]
    parts.append(f"{_mean([moment.waiting for moment in run.moments]):.1f} waiting")
    for pool, name in _POOLS.items():
        seen = [moment.pools[pool] for moment in run.moments if pool in moment.pools]
        if seen:
            shares = ", ".join(
                f"{numerals.percent(_mean([shot[part] for shot in seen]))} {part}"
                for part in POOL_PARTS
            )
            parts.append(f"{name} {shares}")
    return "On average: " + "; ".join(parts) + "."


def _load(moments: Sequence[Moment], time: Scale, runs: Sequence[Run]) -> list[Markup]:
    highest = max(max(m.running, m.waiting) for run in runs for m in run.moments)
    values = ticks(highest, 3)
    scale = Scale(low=0.0, high=values[-1], start=_LOAD_FOOT, end=_LOAD_TOP)
    marks = [
        svg.text(0, 16, "Requests", class_="panel"),
        svg.level_lines(scale, values, time_axis.LEFT, time_axis.RIGHT, [f"{v:g}" for v in values]),
    ]
    for name in ("waiting", "running"):
        places = [(time(m.time_s), scale(getattr(m, name))) for m in moments]
        marks.append(svg.polyline(svg.straight(places), class_=f"load {name}"))
    # The names stand in the margin above, each in the colour of its line.
    marks.append(svg.text(time_axis.RIGHT, 16, "● running", class_="end key running"))
    marks.append(svg.text(time_axis.RIGHT - 82, 16, "● waiting", class_="end key waiting"))
    return marks


def _bands(pool: str, moments: Sequence[Moment], time: Scale, top: float) -> list[Markup]:
    scale = Scale(low=0.0, high=1.0, start=top + _POOL_HEIGHT, end=top)
    xs = [time(moment.time_s) for moment in moments]
    lower = [0.0] * len(moments)
    marks = [
        svg.text(0, top - 12, _POOLS[pool], class_="panel"),
        svg.box(
            time_axis.LEFT,
            top,
            time_axis.RIGHT - time_axis.LEFT,
            _POOL_HEIGHT,
            class_="part part-free",
        ),
    ]
    for part in POOL_PARTS[:-1]:
        upper = [
            below + moment.pools[pool][part] for below, moment in zip(lower, moments, strict=True)
        ]
        marks.append(
            svg.area(
                [(x, scale(value)) for x, value in zip(xs, upper, strict=True)],
                [(x, scale(value)) for x, value in zip(xs, lower, strict=True)],
                class_=f"part part-{part}",
            )
        )
        lower = upper
    for value in (0.0, 0.5, 1.0):
        y = scale(value)
        marks.append(
            svg.text(time_axis.LEFT - 8, y + 4, numerals.percent(value), class_="tick end")
        )
    return marks


def _slices(moments: Sequence[Moment], time: Scale, foot: float) -> Markup:
    """Lay a strip over each sample that says its numbers."""
    marks = []
    for moment, (left, right) in zip(
        moments, pairwise(time_axis.edges(time, moments)), strict=True
    ):
        if right > left:
            marks.append(
                tag(
                    "path",
                    tag("title", _words(moment)),
                    d=f"M{short(left)} {_LOAD_TOP:g}h{short(right - left)}V{foot:g}H{short(left)}z",
                )
            )
    return svg.group(*marks, class_="slices")


def _words(moment: Moment) -> str:
    parts = [
        f"{numerals.seconds(moment.time_s)}: {moment.running} running, {moment.waiting} waiting"
    ]
    for pool, name in _POOLS.items():
        if pool in moment.pools:
            shares = moment.pools[pool]
            words = ", ".join(f"{part} {numerals.percent(shares[part])}" for part in POOL_PARTS)
            parts.append(f"{name}: {words}")
    return "; ".join(parts)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
