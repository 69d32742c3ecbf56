"""The cliff curve: hit rate and throughput over the split, with both cliffs named.

Draws what a sweep found; decides nothing about cliffs or splits.
"""

from __future__ import annotations

from collections.abc import Sequence

from twinpool.replay.report import numerals, svg
from twinpool.replay.report.axes import apart
from twinpool.replay.report.curve_axes import (
    HEIGHT,
    HIT_FOOT,
    HIT_TOP,
    LEFT,
    RATE_FOOT,
    RATE_TOP,
    RIGHT,
    WIDTH,
    CurveAxes,
    curve_axes,
)
from twinpool.replay.report.document import Cell, Cliff, Sweep
from twinpool.replay.report.markup import Markup, tag
from twinpool.replay.report.series import Series, series_of

SIDES = {"kv": "KV-side cliff", "state": "State-side cliff"}
# Names that fit beside the upper panel; further lines are told by pointing at them.
_MAX_NAMES = 12
_PANELS = ("hit", "rate")


def has_curve(sweep: Sweep) -> bool:
    """Say whether there are two splits to draw a line between."""
    return len({cell.slots for cell in sweep.cells if cell.is_shown and cell.slots}) > 1


def cliff_chart(sweep: Sweep) -> Markup:
    """Draw hit rate and throughput over state slots.

    Args:
        sweep: A sweep for which `has_curve` holds.
    """
    lines = series_of(sweep.cells)
    roles = (("baseline", sweep.baseline), ("best", sweep.best))
    marked = [(role, cell) for role, cell in roles if cell is not None and cell.is_shown]
    advised = int(sweep.recommended.get("state_slots") or 0)
    axes = curve_axes(
        [cell for series in lines for cell in series.cells],
        [advised, *(cell.slots for _, cell in reversed(marked))],
        [
            rate
            for rate in (sweep.bound and sweep.bound[0], sweep.reusable_rate)
            if rate is not None
        ],
    )
    return svg.figure(
        "cliffs",
        (WIDTH, HEIGHT),
        "Prefix hit rate and output throughput over the number of state slots, at equal memory",
        describe(sweep),
        *_bands(sweep, axes),
        _frame(axes, advised),
        *_references(sweep, axes),
        *(_fall(cliff, lines, axes, panel) for cliff in sweep.cliffs for panel in _PANELS),
        *(_line(series, axes, panel) for panel in _PANELS for series in reversed(lines)),
        *(_mark(cell, role, lines, axes, panel) for role, cell in marked for panel in _PANELS),
        _names(sweep, lines, axes),
    )


def describe(sweep: Sweep) -> str:
    """Say in words what the curve shows."""
    parts = []
    for role, cell in (("Best", sweep.best), ("Baseline", sweep.baseline)):
        if cell is not None and cell.is_shown:
            parts.append(f"{role}: {cell_words(cell)}.")
    parts += [f"{cliff_words(cliff)}." for cliff in sweep.cliffs]
    return " ".join(parts)


def cell_words(cell: Cell) -> str:
    """Say what a cell is and what came of it, in a line."""
    split = f"{cell.slots} state slots, " if cell.slots else ""
    return (
        f"{cell.label}, {split}{numerals.large(cell.kv_tokens)} KV tokens: "
        f"hit rate {numerals.percent(cell.hit_rate, 1)}, "
        f"{numerals.large(cell.tokens_per_s)} tokens/s, "
        f"TTFT p50 {numerals.seconds(cell.spreads['ttft_s']['p50'])}"
    )


def cliff_words(cliff: Cliff) -> str:
    """Say where a cliff is and how deep."""
    return (
        f"{SIDES.get(cliff.side, cliff.side)} of {cliff.engine}: hit rate "
        f"{numerals.percent(cliff.hit_rate_from)} at {cliff.start.slots} slots, "
        f"{numerals.percent(cliff.hit_rate_to)} at {cliff.end.slots}"
    )


def _frame(axes: CurveAxes, advised: int) -> Markup:
    hit_values = [at / 5 for at in range(6)]
    rates = axes.rate_ticks
    marks = [
        svg.text(LEFT - 44, 18, "Hit rate", _aside("prompt tokens from the cache"), class_="panel"),
        svg.level_lines(
            axes.hit, hit_values, LEFT, RIGHT, [numerals.percent(value) for value in hit_values]
        ),
        svg.text(LEFT - 44, RATE_TOP - 16, "Output", _aside("tokens/s"), class_="panel"),
        svg.level_lines(axes.rate, rates, LEFT, RIGHT, [numerals.large(value) for value in rates]),
        svg.text(RIGHT + 12, RATE_FOOT + 17, "state slots", class_="axis"),
    ]
    if axes.split.is_log:
        marks.append(svg.text(RIGHT + 12, RATE_FOOT + 31, "log scale", class_="quiet"))
    for value in axes.slots:
        style = "tick mid strong" if value == advised else "tick mid"
        marks.append(svg.text(axes.split(value), RATE_FOOT + 18, str(value), class_=style))
    if axes.kv_tokens:
        marks.append(svg.text(RIGHT + 12, HIT_TOP - 12, "KV tokens left", class_="axis"))
        for value, tokens in zip(axes.slots, axes.kv_tokens, strict=True):
            label = numerals.large(tokens)
            marks.append(svg.text(axes.split(value), HIT_TOP - 12, label, class_="tick mid"))
    if axes.split.low <= advised <= axes.split.high:
        x = axes.split(advised)
        marks += [
            svg.line(x, HIT_TOP, x, RATE_FOOT, class_="advised"),
            svg.text(x, RATE_FOOT + 36, "recommended", class_="tick mid strong"),
        ]
    return svg.group(*marks)


def _aside(words: str) -> Markup:
    return tag("tspan", words, dx=8, class_="quiet")


def _bands(sweep: Sweep, axes: CurveAxes) -> list[Markup]:
    """Shade one fall a side: that of the best cell's engine, or else of the first that has one."""
    engine = sweep.best.engine if sweep.best else ""
    marks: list[Markup] = []
    for side, name in SIDES.items():
        cliffs = [cliff for cliff in sweep.cliffs if cliff.side == side]
        own = [cliff for cliff in cliffs if cliff.engine == engine]
        for cliff in (own or cliffs)[:1]:
            ends = sorted(axes.split(cell.slots) for cell in (cliff.start, cliff.end))
            middle = (ends[0] + ends[1]) / 2
            fall = (
                f"{numerals.percent(cliff.hit_rate_from)} → {numerals.percent(cliff.hit_rate_to)}"
            )
            marks += [
                svg.box(
                    ends[0],
                    HIT_TOP,
                    ends[1] - ends[0],
                    RATE_FOOT - HIT_TOP,
                    tag("title", cliff_words(cliff)),
                    class_="cliff",
                ),
                svg.text(middle, HIT_FOOT + 20, name, class_="mid strong halo"),
                svg.text(middle, HIT_FOOT + 36, fall, class_="mid quiet halo"),
            ]
    return marks


def _references(sweep: Sweep, axes: CurveAxes) -> list[Markup]:
    marks = []
    if sweep.bound:
        y = axes.hit(sweep.bound[0])
        marks.append(svg.line(LEFT, y, RIGHT, y, class_="bound"))
    if sweep.reusable_rate is not None:
        y = axes.hit(sweep.reusable_rate)
        marks.append(svg.line(LEFT, y, RIGHT, y, class_="limit"))
    return marks


def _fall(cliff: Cliff, lines: Sequence[Series], axes: CurveAxes, panel: str) -> Markup | None:
    series = next(
        (one for one in lines if cliff.start in one.cells and cliff.end in one.cells), None
    )
    if series is None:
        return None
    low, high = sorted((cliff.start.slots, cliff.end.slots))
    points = [axes.at(cell, panel) for cell in series.cells if low <= cell.slots <= high]
    return svg.group(svg.polyline(points, class_="fall"), class_=f"s{series.colour}")


def _line(series: Series, axes: CurveAxes, panel: str) -> Markup:
    points = [axes.at(cell, panel) for cell in series.cells if cell.slots]
    marks = [svg.polyline(points, class_="curve")] if len(points) > 1 else []
    for cell in series.cells:
        if cell.slots:
            x, y = axes.at(cell, panel)
            title = tag("title", cell_words(cell))
            marks.append(svg.marker(series.colour, x, y, 4.2, title, class_="dot"))
        else:
            # Memory without a split holds for every split.
            y = axes.at(cell, panel)[1]
            title = tag("title", cell_words(cell))
            marks.append(
                tag("path", title, d=svg.track([(LEFT, y), (RIGHT, y)]), class_="curve unsplit")
            )
    return svg.group(*marks, class_=f"s{series.colour} d{min(series.dash, 4)}")


def _mark(cell: Cell, role: str, lines: Sequence[Series], axes: CurveAxes, panel: str) -> Markup:
    x, y = axes.at(cell, panel)
    # Memory without a split is a level line; its mark stands at the right end.
    x = x if cell.slots else RIGHT - 16
    top = HIT_TOP if panel == "hit" else RATE_TOP
    colour = next(series.colour for series in lines if cell in series.cells)
    value = numerals.percent(cell.hit_rate) if panel == "hit" else numerals.large(cell.tokens_per_s)
    side, shift, words = "mid", 0.0, [f"{role} {value}"]
    # At the ends of the axis a short text, in two lines, keeps clear of the curve.
    if x > RIGHT - 60:
        side, shift, words = "end", 10.0, [role, value]
    elif x < LEFT + 60:
        side, shift, words = "start", -10.0, [role, value]
    # Above the dot, or below where the text would leave the panel or cover a line of reference.
    reach = 13 + 13 * len(words)
    is_below = y - top < reach - 16 or (
        panel == "hit" and any(y - reach < axes.hit(rate) < y for rate in axes.references)
    )
    first = y + 22 if is_below else y - 13 - 14 * (len(words) - 1)
    return svg.group(
        svg.marker(colour, x, y, 4.2, tag("title", cell_words(cell)), class_="dot"),
        tag("circle", cx=x, cy=y, r=8, class_="ring"),
        *(
            svg.text(x + shift, first + 14 * at, word, class_=f"{side} strong halo")
            for at, word in enumerate(words)
        ),
        class_=f"s{colour}",
    )


def _names(sweep: Sweep, lines: Sequence[Series], axes: CurveAxes) -> Markup:
    """Name each line at its right end, with a thin lead where the name had to move."""
    named: list[tuple[float, float, str, str]] = []
    if sweep.reusable_rate is not None:
        label = f"no limits {numerals.percent(sweep.reusable_rate)}"
        named.append((RIGHT, axes.hit(sweep.reusable_rate), label, "quiet"))
    if sweep.bound:
        label = f"bound, {sweep.bound[1]} {numerals.percent(sweep.bound[0])}"
        named.append((RIGHT, axes.hit(sweep.bound[0]), label, "strong"))
    for series in lines[:_MAX_NAMES]:
        last = series.cells[-1]
        x, y = axes.at(last, "hit")
        named.append(
            (x if last.slots else RIGHT, y, svg.cut(series.name, 28), f"s{series.colour} name")
        )
    places = apart([entry[1] for entry in named], 16.0, HIT_TOP, HIT_FOOT)
    marks = []
    for (x, y, label, style), place in zip(named, places, strict=True):
        if x < RIGHT or abs(place - y) > 3:
            lead = [(x + 6, y), (RIGHT + 2, y), (RIGHT + 9, place)]
            marks.append(svg.polyline(lead, class_="lead"))
        marks.append(svg.text(RIGHT + 12, place + 4, label, class_=style))
    if len(lines) > _MAX_NAMES:
        more = f"and {len(lines) - _MAX_NAMES} more lines"
        marks.append(svg.text(RIGHT + 12, HIT_FOOT + 20, more, class_="quiet"))
    return svg.group(*marks)
