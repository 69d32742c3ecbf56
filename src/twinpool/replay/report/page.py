"""The page: its sections in their order, with style and script inside, from a sweep's document.

Fetches nothing and refers to nothing outside itself; knows charts by name only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from twinpool.replay.report import numerals, occupancy, residency, tables, time_axis
from twinpool.replay.report.cliffs import cliff_chart, cliff_words, has_curve
from twinpool.replay.report.document import POOL_PARTS, RESIDENCIES, Run, Sweep, read_sweep
from twinpool.replay.report.dots import dot_chart
from twinpool.replay.report.headline import figures, flags, headline, reasons
from twinpool.replay.report.markup import Child, Markup, tag
from twinpool.replay.report.turns import turns_chart


def render_report(document: Mapping[str, Any]) -> str:
    """Render the report of a sweep.

    Args:
        document: As `twinpool sweep --json` writes it; read only.

    Returns:
        One HTML page that needs nothing else; the same for the same document, byte for byte.

    Raises:
        ConfigError: If the document lacks a field, or names a cell that is not there.
    """
    sweep = read_sweep(document)
    title = f"Sweep of {sweep.facts['trace']}: {sweep.facts['model']}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", _file("style.css")),
    )
    body = tag(
        "body",
        tag("main", *_sections(sweep)),
        tag("script", _file("page.js")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _file(name: str) -> Markup:
    return Markup(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _sections(sweep: Sweep) -> list[Markup]:
    return [
        _header(sweep),
        _section("flags", "Flags to paste", flags(sweep.recommended), reasons(sweep.recommended)),
        _curve(sweep),
        _over_time(sweep),
        _sessions(sweep),
        _turns(sweep),
        _section("cells", "All cells", tables.cells_table(sweep), tables.latencies_table(sweep)),
        _sources(sweep),
    ]


def _section(name: str, title: str, *content: Child) -> Markup:
    return tag(
        "section",
        tag("h2", title, id=f"{name}-heading"),
        *content,
        aria_labelledby=f"{name}-heading",
    )


def _header(sweep: Sweep) -> Markup:
    facts = sweep.facts
    entries = {
        "trace": f"{facts['trace']} ({facts['format']})",
        "model": facts["model"],
        "load": facts["loop"],
        "virtual time": numerals.seconds(facts["duration_s"]),
        "memory for both pools, per rank": numerals.gibibytes(facts["memory_after_weights"]),
        "cells": numerals.whole(len(sweep.cells)),
    }
    tiles = [
        tag(
            "div",
            tag("dt", figure.name),
            tag("dd", figure.best, class_="large"),
            tag("dd", f"baseline {figure.baseline}", class_="quiet") if figure.baseline else None,
        )
        for figure in figures(sweep)
    ]
    return tag(
        "header",
        tag("p", "twinpool sweep", class_="kicker"),
        tag("h1", headline(sweep)),
        tag("dl", *tiles, class_="tiles") if tiles else None,
        tag(
            "dl",
            *(
                tag("div", tag("dt", name), tag("dd", str(value)))
                for name, value in entries.items()
            ),
            class_="facts",
        ),
    )


def _curve(sweep: Sweep) -> Markup:
    failed = sum(not cell.is_shown for cell in sweep.cells)
    left_out = f"{failed} of {len(sweep.cells)} cells failed and are in the table only."
    note = tag("p", left_out, class_="quiet") if failed else None
    if failed == len(sweep.cells):
        chart = tag("p", "No cell has figures to draw.", class_="none")
        return _section("curve", "Hit rate and throughput", chart, note)
    if not has_curve(sweep):
        return _section("curve", "Hit rate and throughput", _frame(dot_chart(sweep)), note)
    lead = (
        "Every point is a replay of the same traffic on the same bytes: each state slot more "
        "leaves fewer KV tokens. The curve falls on both sides, to the left because too few "
        "states are kept, to the right because too little KV is left to go with them."
        if len({cliff.side for cliff in sweep.cliffs}) == 2
        else "Every point is a replay of the same traffic on the same bytes: each state slot "
        "more leaves fewer KV tokens."
    )
    cliffs = [tag("li", cliff_words(cliff)) for cliff in sweep.cliffs]
    return _section(
        "curve",
        "The cliff curve",
        tag("p", lead),
        _frame(cliff_chart(sweep)),
        tag("ul", *cliffs, class_="quiet") if cliffs else None,
        note,
    )


def _over_time(sweep: Sweep) -> Markup:
    runs = [run for run in sweep.runs if run.moments]
    if not runs:
        empty = tag("p", "No run was sampled over time.", class_="none")
        return _section("time", "What filled the pools", empty)
    words = {
        "working": "rows and slots that running requests own",
        "locked": "cached and in use",
        "evictable": "cached and free to go",
        "free": "owned by nobody",
    }
    key = [
        tag("li", tag("i", class_=f"swatch part-{part}"), tag("b", part), f" {words[part]}")
        for part in POOL_PARTS
    ]
    return _section(
        "time",
        "What filled the pools",
        tag("p", "Parts of each pool over virtual time, from the bottom up:"),
        tag("ul", *key, class_="key"),
        _pair(runs, [occupancy.occupancy_chart(run, runs) for run in runs], _every(runs)),
    )


def _sessions(sweep: Sweep) -> Markup:
    runs = [run for run in sweep.runs if any(moment.sessions for moment in run.moments)]
    if not runs:
        empty = tag("p", "Sessions were not sampled.", class_="none")
        return _section("sessions", "What stayed of each session", empty)
    words = {
        "running": "a request of it runs",
        "both": "KV and a state: the next turn reuses it",
        "kv only": "KV without its state: computed again",
        "state only": "a state without its KV: computed again",
        "cold": "nothing of use is left",
    }
    key = [
        tag(
            "li",
            tag("i", class_=f"swatch stay-{state.replace(' ', '-')}"),
            tag("b", residency.spoken(state)),
            f" {words[state]}",
        )
        for state in RESIDENCIES
    ]
    rows = residency.choose_rows(runs)
    note = None
    if rows.num_seen > len(rows.names):
        note = tag(
            "p",
            f"{len(rows.names)} of {rows.num_seen} sessions are drawn: those seen longest.",
            class_="quiet",
        )
    captions = [residency.describe(run) for run in runs]
    charts = [residency.residency_chart(run, runs, rows) for run in runs]
    return _section(
        "sessions",
        "What stayed of each session",
        tag(
            "p", "Rows stand at the same height in both charts; a row begins when its session does."
        ),
        tag("ul", *key, class_="key"),
        _pair(runs, charts, captions),
        note,
    )


def _turns(sweep: Sweep) -> Markup:
    runs = [run for run in sweep.runs if run.turns]
    if not runs:
        empty = tag("p", "No run has hits by turn.", class_="none")
        return _section("turns", "Hits by turn", empty)
    return _section("turns", "Hits by turn", _frame(turns_chart(runs)))


def _sources(sweep: Sweep) -> Markup:
    lead = (
        "Times are virtual: the scheduler and the memory code of the server ran on a clock that "
        "the step cost below moves on. Hit rate is cached prompt tokens by prompt tokens. "
        "Regretted tokens were evicted, or never kept, and then wanted again."
    )
    bound = None
    if sweep.bound:
        rate, kind = sweep.bound
        bound = tag(
            "p", f"Bound on the hit rate of any policy ({kind}): {numerals.percent(rate, 1)}."
        )
    limit = None
    if sweep.reusable_rate is not None:
        share = numerals.percent(sweep.reusable_rate, 1)
        limit = tag("p", f"A cache without limits would have had {share} of the prompt tokens.")
    notes = [tag("li", note) for note in sweep.notes]
    return _section(
        "sources",
        "How the numbers were got",
        tag("p", lead),
        bound,
        limit,
        tables.cost_table(sweep) if sweep.cost else None,
        tag("h3", "Notes") if notes else None,
        tag("ul", *notes) if notes else None,
    )


def _frame(chart: Markup) -> Markup:
    return tag("div", chart, class_="chart")


def _pair(runs: Sequence[Run], charts: Sequence[Markup], captions: Sequence[str]) -> Markup:
    cards = [
        tag(
            "figure",
            tag(
                "figcaption",
                tag("span", run.name, class_=f"badge run-{run.name}"),
                " ",
                tag("b", run.cell.label),
            ),
            _frame(chart),
            tag("p", caption, class_="quiet") if caption else None,
        )
        for run, chart, caption in zip(runs, charts, captions, strict=True)
    ]
    return tag("div", *cards, class_="pair")


def _every(runs: Sequence[Run]) -> list[str]:
    captions = []
    for run in runs:
        moments, every = time_axis.thinned_moments(run)
        thinned = f" Drawn: {len(moments)} of {len(run.moments)} samples." if every > 1 else ""
        captions.append(occupancy.describe(run) + thinned)
    return captions
