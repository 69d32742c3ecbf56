"""Tables of the page: every cell with its figures, its latencies, and the terms of the cost.

Lays numbers out; computes none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twinpool.replay.report import numerals
from twinpool.replay.report.document import FIGURES, SPREADS, Cell, Sweep
from twinpool.replay.report.markup import Markup, join, tag

_POLICIES = ("engine", "strategy", "eviction", "order", "memory")
_SPLIT: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("ratio", "ratio", numerals.ratio),
    ("state_slots", "state slots", numerals.whole),
    ("kv_tokens", "KV tokens", numerals.whole),
    ("max_running_requests", "max running", numerals.whole),
    ("slots_per_request", "slots per request", numerals.whole),
)
_COUNTS = (
    ("prompt_tokens", "prompt tokens"),
    ("state_missed_tokens", "KV there, state missed, tokens"),
    ("regretted_tokens", "regretted tokens"),
    ("requests", "requests"),
    ("refused", "refused"),
    ("unfinished", "unfinished"),
)
_LATENCIES = {
    "ttft_s": "time to first token",
    "wait_s": "wait for admission",
    "tpot_s": "time per output token",
}
_UNITS = (
    ("_tokens_per_s", "tokens/s"),
    ("_bytes_per_s", "bytes/s"),
    ("_flops_per_s", "FLOP/s"),
    ("_per_s", "per s"),
    ("_s", "s"),
    ("_bytes", "bytes"),
    ("_tokens", "tokens"),
    ("_flops", "FLOP"),
)


def cells_table(sweep: Sweep) -> Markup:
    """Show every cell: policies, split, and what came of it."""
    heads = ["cell", *_POLICIES, *(name for _, name, _ in _SPLIT)]
    heads += ["hit rate", "output tokens/s", *(name for _, name in _COUNTS), "error"]
    fastest = max((cell.tokens_per_s or 0.0 for cell in sweep.cells), default=0.0)
    rows = [_row(cell, sweep, _figures(cell, fastest)) for cell in sweep.cells]
    return _table("All cells: split, policies and result", _heads(heads, 1 + len(_POLICIES)), rows)


def latencies_table(sweep: Sweep) -> Markup:
    """Show the latencies of every cell."""
    top = [tag("th", "", scope="col")]
    top += [tag("th", _LATENCIES[name], colspan=len(FIGURES), scope="colgroup") for name in SPREADS]
    heads = ["cell", *(figure for _ in SPREADS for figure in FIGURES)]
    rows = []
    for cell in sweep.cells:
        values = [cell.spreads[name][figure] for name in SPREADS for figure in FIGURES]
        rows.append(_row(cell, sweep, [_cell(numerals.seconds(v), v) for v in values]))
    return _table(
        "All cells: latencies in virtual time", join(tag("tr", *top), _heads(heads, 1)), rows
    )


def cost_table(sweep: Sweep) -> Markup:
    """Show the terms of the step cost, each with its source."""
    rows = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            tag("td", join(numerals.exact(term["value"]), unit_of(name), between=" ")),
            tag("td", tag("span", str(term["source"]), class_="source"), class_="words"),
            tag("td", str(term["why"]), class_="words"),
        )
        for name, term in sweep.cost.items()
    ]
    heads = tag(
        "tr",
        tag("th", "term", scope="col", class_="words"),
        tag("th", "value", scope="col"),
        tag("th", "source", scope="col", class_="words"),
        tag("th", "why", scope="col", class_="words"),
    )
    return _table("Terms of the step cost", heads, rows)


def unit_of(name: str) -> str:
    """Read the unit off a name; empty for a plain number."""
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "")


def _heads(names: Sequence[str], num_words: int) -> Markup:
    return tag(
        "tr",
        *(
            tag("th", name, scope="col", class_="words" if at < num_words else None)
            for at, name in enumerate(names)
        ),
        class_="heads",
    )


def _row(cell: Cell, sweep: Sweep, values: Sequence[Markup]) -> Markup:
    role = "best" if cell is sweep.best else "baseline" if cell is sweep.baseline else None
    badge = None if role is None else tag("span", role, class_=f"badge run-{role}")
    return tag(
        "tr",
        tag("th", join(cell.label, badge, between=" ") if badge else cell.label, scope="row"),
        *values,
        class_=role,
    )


def _figures(cell: Cell, fastest: float) -> list[Markup]:
    rate, speed = cell.hit_rate, cell.tokens_per_s
    return [
        *(tag("td", cell.policy[name], class_="words") for name in _POLICIES),
        *(_cell(write(cell.counts[name]), cell.counts[name]) for name, _, write in _SPLIT),
        _cell(numerals.percent(rate, 1), rate, rate or 0.0),
        _cell(numerals.large(speed), speed, (speed or 0.0) / fastest if fastest else 0.0),
        *(_cell(numerals.whole(cell.counts[name]), cell.counts[name]) for name, _ in _COUNTS),
        tag("td", cell.error, class_="words error"),
    ]


def _cell(text: str, value: float | None, bar: float | None = None) -> Markup:
    """Write a number with what it sorts by, and a bar behind it where it is a part."""
    style = None if bar is None else f"--v:{bar * 100:.1f}%"
    key = None if value is None else f"{value:.9g}"
    return tag("td", text, data_v=key, style=style, class_=None if bar is None else "bar")


def _table(caption: str, heads: Markup, rows: Sequence[Markup]) -> Markup:
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", heads),
            tag("tbody", *rows),
        ),
        class_="wide",
        tabindex=0,
        role="region",
        aria_label=caption,
    )
