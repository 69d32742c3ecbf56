"""Hits by turn: how much of the prompts of early and late turns came from the cache.

Draws groups of turns as a replay made them.
"""

from __future__ import annotations

from collections.abc import Sequence

from twinpool.replay.report import numerals, svg
from twinpool.replay.report.axes import Scale, apart
from twinpool.replay.report.document import Run, Turns
from twinpool.replay.report.markup import Markup, tag

WIDTH, HEIGHT = 980, 330
_LEFT, _RIGHT = 58.0, 840.0
_TOP, _FOOT = 40.0, 256.0


def turns_chart(runs: Sequence[Run]) -> Markup:
    """Draw a line for each run over groups of turns.

    Args:
        runs: With one group of turns at least.
    """
    groups = sorted({(g.first, g.last) for run in runs for g in run.turns}, key=lambda g: g[0])
    step = (_RIGHT - _LEFT) / len(groups)
    places = {group: _LEFT + step * (at + 0.5) for at, group in enumerate(groups)}
    hit = Scale(low=0.0, high=1.0, start=_FOOT, end=_TOP)
    values = [at / 4 for at in range(5)]
    marks = [
        svg.text(14, 18, "Hit rate", class_="panel"),
        svg.level_lines(hit, values, _LEFT, _RIGHT, [numerals.percent(value) for value in values]),
    ]
    for group, x in places.items():
        marks.append(svg.text(x, _FOOT + 18, group_words(*group), class_="tick mid"))
    marks.append(svg.text(_RIGHT + 12, _FOOT + 18, "turn of a session", class_="axis"))
    for at, run in enumerate(runs):
        row = _FOOT + 38 + 17 * at
        marks.append(svg.text(_RIGHT + 12, row, f"requests, {run.name}", class_="axis"))
        for turn in run.turns:
            x = places[turn.first, turn.last]
            marks.append(svg.text(x, row, numerals.whole(turn.requests), class_="tick mid"))
    marks += [_line(run, places, hit) for run in reversed(runs)]
    marks.append(_names(runs, places, hit))
    title = "Prefix hit rate by turn of the session"
    return svg.figure("turns", (WIDTH, HEIGHT), title, describe(runs), *marks)


def group_words(first: int, last: int | None) -> str:
    """Name a group of turns, counted from 1 as people do."""
    if last is None:
        return f"{first + 1} on"
    return f"{first + 1}" if first == last else f"{first + 1}\u2013{last + 1}"


def describe(runs: Sequence[Run]) -> str:
    """Say every point in words."""
    parts = []
    for run in runs:
        words = ", ".join(
            f"turn {group_words(turn.first, turn.last)}: {numerals.percent(turn.hit_rate)}"
            for turn in run.turns
        )
        parts.append(f"{run.name.capitalize()}: {words}.")
    return " ".join(parts)


def _line(run: Run, places: dict[tuple[int, int | None], float], hit: Scale) -> Markup:
    points = [(places[turn.first, turn.last], hit(turn.hit_rate)) for turn in run.turns]
    marks = [svg.polyline(points, class_="curve")] if len(points) > 1 else []
    for turn, (x, y) in zip(run.turns, points, strict=True):
        marks.append(svg.marker(0, x, y, 4.6, tag("title", _words(run, turn)), class_="dot"))
        if y < _FOOT - 12 or run.name == "best":
            label = numerals.percent(turn.hit_rate)
            base = y - 12 if y - 12 > _TOP - 6 else y + 20
            marks.append(svg.text(x, base, label, class_="tick mid halo"))
    return svg.group(*marks, class_=f"run run-{run.name}")


def _words(run: Run, turn: Turns) -> str:
    return (
        f"{run.name}, turn {group_words(turn.first, turn.last)}: "
        f"{numerals.percent(turn.hit_rate, 1)} of the prompt tokens of "
        f"{numerals.whole(turn.requests)} requests"
    )


def _names(runs: Sequence[Run], places: dict[tuple[int, int | None], float], hit: Scale) -> Markup:
    ends = [(run, run.turns[-1]) for run in runs if run.turns]
    heights = apart([hit(turn.hit_rate) for _, turn in ends], 17.0, _TOP, _FOOT - 4)
    marks = []
    for (run, turn), y in zip(ends, heights, strict=True):
        x = places[turn.first, turn.last]
        lead = [(x + 7, hit(turn.hit_rate)), (_RIGHT + 2, hit(turn.hit_rate)), (_RIGHT + 9, y)]
        marks.append(svg.polyline(lead, class_="lead"))
        marks.append(svg.text(_RIGHT + 12, y + 4, run.name, class_=f"name run run-{run.name}"))
    return svg.group(*marks)
