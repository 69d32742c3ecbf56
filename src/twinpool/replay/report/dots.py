"""Hit rate and throughput of each cell as a row: for sweeps that have no two splits to join.

Knows how rows are laid out; knows no pool.
"""

from __future__ import annotations

from twinpool.replay.report import numerals, svg
from twinpool.replay.report.axes import Scale, ticks
from twinpool.replay.report.cliffs import cell_words, describe
from twinpool.replay.report.document import Cell, Sweep
from twinpool.replay.report.markup import Markup, tag
from twinpool.replay.report.series import colours_of

WIDTH = 980
_TOP, _ROW = 58.0, 26.0
_HIT = (250.0, 570.0)
_RATE = (640.0, 900.0)


def dot_chart(sweep: Sweep) -> Markup:
    """Draw a row for each cell that did not fail.

    Args:
        sweep: With one such cell at least.
    """
    cells = [cell for cell in sweep.cells if cell.is_shown]
    foot = _TOP + _ROW * len(cells)
    rates = ticks(max(cell.tokens_per_s or 0.0 for cell in cells), 4)
    hit = Scale(low=0.0, high=1.0, start=_HIT[0], end=_HIT[1])
    rate = Scale(low=0.0, high=rates[-1], start=_RATE[0], end=_RATE[1])
    colours = colours_of(cells)
    marks = [
        svg.text(_HIT[0], 18, "Hit rate", class_="panel"),
        svg.text(_RATE[0], 18, "Output tokens/s", class_="panel"),
        *_uprights(hit, [at / 4 for at in range(5)], foot, percent=True),
        *_uprights(rate, rates, foot, percent=False),
    ]
    if sweep.bound:
        x = hit(sweep.bound[0])
        label = f"bound {numerals.percent(sweep.bound[0])}"
        marks += [
            svg.line(x, _TOP - 4, x, foot, class_="bound"),
            svg.text(x, foot + 16, label, class_="tick mid strong"),
        ]
    for at, cell in enumerate(cells):
        y = _TOP + _ROW * (at + 0.5)
        marks.append(_row(cell, y, hit, rate, colours[cell.engine], cell is sweep.best))
    return svg.figure(
        "cells-chart",
        (WIDTH, round(foot + 26)),
        "Prefix hit rate and output throughput of each cell",
        describe(sweep),
        *marks,
    )


def _uprights(scale: Scale, values: list[float], foot: float, *, percent: bool) -> list[Markup]:
    marks = []
    for value in values:
        x = scale(value)
        label = numerals.percent(value) if percent else numerals.large(value)
        marks += [
            svg.line(x, _TOP - 4, x, foot, class_="zero" if value == 0 else "grid"),
            svg.text(x, _TOP - 12, label, class_="tick mid"),
        ]
    return marks


def _row(cell: Cell, y: float, hit: Scale, rate: Scale, colour: int, is_best: bool) -> Markup:
    style = "end strong" if is_best else "end"
    x, end = hit(cell.hit_rate or 0.0), rate(cell.tokens_per_s or 0.0)
    return svg.group(
        tag("title", cell_words(cell)),
        svg.text(_HIT[0] - 14, y + 4, svg.cut(cell.label, 34), class_=style),
        svg.line(_HIT[0], y, x, y, class_="stem"),
        svg.marker(colour, x, y, 5.0, class_="dot"),
        svg.text(x + 11, y + 4, numerals.percent(cell.hit_rate), class_="tick halo"),
        svg.box(_RATE[0], y - 6, max(end - _RATE[0], 1.0), 12, class_="dot"),
        svg.text(end + 7, y + 4, numerals.large(cell.tokens_per_s), class_="tick halo"),
        class_=f"s{colour}",
    )
