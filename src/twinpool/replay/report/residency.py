"""The residency timeline: a row for each session, painted by what memory holds of it.

Draws samples; does not ask a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinpool.replay.report import numerals, svg, time_axis
from twinpool.replay.report.axes import Scale
from twinpool.replay.report.document import RESIDENCIES, Moment, Run
from twinpool.replay.report.markup import Markup, short, tag

MAX_ROWS = 64
_TOP = 28.0
_ROW = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Sessions as rows that stand at the same height in every run.

    Attributes:
        names: Sessions that get a row, from the top down.
        num_seen: Sessions that were seen at all.
    """

    names: tuple[str, ...]
    num_seen: int


def choose_rows(runs: Sequence[Run]) -> Rows:
    """Choose and order the rows: by first appearance, then by how long the session stayed warm.

    Args:
        runs: Runs that stand side by side; the first one decides the order.
    """
    first: dict[str, float] = {}
    warm: dict[str, int] = {}
    seen: dict[str, int] = {}
    for run in runs:
        moments, _ = time_axis.thinned_moments(run)
        for moment in moments:
            for name, state in moment.sessions.items():
                if name not in first:
                    first[name] = moment.time_s
                seen[name] = seen.get(name, 0) + 1
                if run is runs[0] and state in ("running", "both"):
                    warm[name] = warm.get(name, 0) + 1
    # Those that were seen longest say most; the limit keeps rows tall enough to be seen.
    chosen = sorted(seen, key=lambda name: (-seen[name], name))[:MAX_ROWS]
    chosen.sort(key=lambda name: (first[name], -warm.get(name, 0), name))
    return Rows(names=tuple(chosen), num_seen=len(seen))


def residency_chart(run: Run, runs: Sequence[Run], rows: Rows) -> Markup:
    """Draw one run.

    Args:
        run: The run; with one sample of sessions at least.
        runs: All runs that stand beside it, which share its time axis.
        rows: As `choose_rows` gave them.
    """
    moments, _ = time_axis.thinned_moments(run)
    time = time_axis.time_scale(runs)
    foot = _TOP + _ROW * len(rows.names)
    places = {name: _TOP + _ROW * (at + 0.5) for at, name in enumerate(rows.names)}
    tracks = _tracks(moments, time, places)
    return svg.figure(
        f"residency-{run.name}",
        (time_axis.WIDTH, round(foot + 26)),
        f"What memory holds of each session over time, {run.name}: {run.cell.label}",
        describe(run),
        svg.text(0, 16, f"{len(rows.names)} sessions, a row each", class_="panel"),
        *(
            tag("path", d="".join(tracks[state]), class_=f"stay stay-{state.replace(' ', '-')}")
            for state in RESIDENCIES
            if tracks[state]
        ),
        time_axis.time_foot(time, foot),
        _labels(run, rows),
    )


def shares(run: Run) -> Mapping[str, float]:
    """Say which part of the sessions' time was spent how.

    Args:
        run: Every session counts from when it was first seen to the end of the run.

    Returns:
        Parts of a whole by state; empty without samples of sessions.
    """
    counts = dict.fromkeys(RESIDENCIES, 0)
    for moment in run.moments:
        for state in moment.sessions.values():
            counts[state] += 1
    total = sum(counts.values())
    return {state: count / total for state, count in counts.items()} if total else {}


def describe(run: Run) -> str:
    """Say the shares in words."""
    found = shares(run)
    words = ", ".join(f"{spoken(state)} {numerals.percent(part)}" for state, part in found.items())
    return f"Of the sessions' time: {words}." if found else "No session was sampled."


def spoken(state: str) -> str:
    """Write a state as people do."""
    return state.replace("kv", "KV")


def _tracks(
    moments: Sequence[Moment], time: Scale, places: Mapping[str, float]
) -> dict[str, list[str]]:
    """Write each row as strokes, one for each stretch in one state."""
    edges = time_axis.edges(time, moments)
    tracks: dict[str, list[str]] = {state: [] for state in RESIDENCIES}
    for name, y in places.items():
        start, state = 0.0, ""
        for moment, x in zip(moments, edges, strict=False):
            now = moment.sessions.get(name, "")
            if now != state:
                _stroke(tracks, state, start, x, y)
                start, state = x, now
        _stroke(tracks, state, start, edges[-1], y)
    return tracks


def _stroke(
    tracks: Mapping[str, list[str]], state: str, start: float, end: float, y: float
) -> None:
    if state and end > start:
        tracks[state].append(f"M{short(start)} {short(y)}H{short(end)}")


def _labels(run: Run, rows: Rows) -> Markup:
    """Lay a strip over each row that names the session and its shares."""
    marks = []
    for at, name in enumerate(rows.names):
        found = [moment.sessions[name] for moment in run.moments if name in moment.sessions]
        words = ", ".join(
            f"{spoken(state)} {numerals.percent(found.count(state) / len(found))}"
            for state in RESIDENCIES
            if state in found
        )
        title = tag("title", f"{name}: {words}" if found else f"{name}: not seen in this run")
        marks.append(
            svg.box(time_axis.LEFT, _TOP + at * _ROW, time_axis.RIGHT - time_axis.LEFT, _ROW, title)
        )
    return svg.group(*marks, class_="slices")
