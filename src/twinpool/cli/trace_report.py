"""What `twinpool trace info` prints, as text for people and as stable JSON.

Knows no arithmetic; the figures are defined in `traces.statistics`.
"""

from __future__ import annotations

from typing import Any

from twinpool.cli.output import columns
from twinpool.traces.schema import Trace
from twinpool.traces.statistics import Spread, TraceStatistics


def trace_document(
    trace: Trace, figures: TraceStatistics, capacities: tuple[int, ...]
) -> dict[str, Any]:
    """Build the JSON document; tokens and counts are integers, what is not recorded is null.

    Args:
        trace: What was measured.
        figures: What came of it.
        capacities: Tokens at which to read the LRU curve.
    """
    return {
        "trace": trace.name,
        "format": trace.format,
        "block_tokens": trace.block_tokens,
        "has_times": trace.has_times,
        "requests": figures.num_requests,
        "sessions": figures.num_sessions,
        "child_sessions": figures.num_children,
        "duration_s": figures.duration_s,
        "input_tokens": figures.input_tokens,
        "output_tokens": figures.output_tokens,
        "unique_tokens": figures.unique_tokens,
        "turns": _spread(figures.turns),
        "context_tokens": _spread(figures.context_tokens),
        "prompt_tokens": _spread(figures.prompt_tokens),
        "answer_tokens": _spread(figures.answer_tokens),
        "gap_s": _spread(figures.gap_s),
        "think_s": None if figures.think_s is None else _spread(figures.think_s),
        "turn_pairs": figures.num_pairs,
        "rewritten_pairs": figures.num_rewritten,
        "hit_tokens": figures.reused_tokens,
        "hit_rate": figures.hit_rate,
        "lru": [
            {
                "capacity_tokens": capacity,
                "hit_tokens": figures.lru.hit_tokens(capacity),
                "hit_rate": figures.lru_hit_rate(capacity),
                "block_hit_rate": figures.lru_block_hit_rate(capacity),
            }
            for capacity in capacities
        ],
        "lru_enough_tokens": figures.lru.enough_tokens,
    }


def trace_report(trace: Trace, figures: TraceStatistics, capacities: tuple[int, ...]) -> str:
    """Write the report.

    Args:
        trace: What was measured.
        figures: What came of it.
        capacities: Tokens at which to read the LRU curve.

    Returns:
        Text without a newline at its end.
    """
    head = f"{trace.name}: {trace.format}, blocks of {trace.block_tokens} tokens"
    return "\n\n".join(
        (
            head,
            _totals(figures),
            _spreads(figures),
            _reuse(figures),
            _lru(trace, figures, capacities),
        )
    )


def format_capacity(tokens: int) -> str:
    """Print a number of tokens as it may be typed: `64k`, `1M`, or in digits."""
    for suffix, factor in (("G", 2**30), ("M", 2**20), ("k", 2**10)):
        if tokens % factor == 0:
            return f"{tokens // factor}{suffix}"
    return str(tokens)


def _totals(figures: TraceStatistics) -> str:
    children = f" and {figures.num_children:,} that they started" if figures.num_children else ""
    rows = [
        ["requests", f"{figures.num_requests:,}"],
        ["sessions", f"{figures.num_sessions:,}{children}"],
        ["input tokens", f"{figures.input_tokens:,}"],
        ["output tokens", f"{figures.output_tokens:,}"],
        ["unique tokens", f"{figures.unique_tokens:,} in different blocks of prompts"],
    ]
    if figures.duration_s is not None:
        rows.append(["first to last", f"{figures.duration_s:,.0f} s"])
    return columns(rows)


def _spreads(figures: TraceStatistics) -> str:
    rows = [["", "p50", "p90", "max"]]
    for name, spread in (
        ("turns of a session", figures.turns),
        ("longest prompt of a session", figures.context_tokens),
        ("prompt tokens", figures.prompt_tokens),
        ("answer tokens", figures.answer_tokens),
    ):
        rows.append([name, *(f"{value:,.0f}" for value in _values(spread))])
    if figures.num_pairs:
        rows.append(["seconds from turn to turn", *_seconds(figures.gap_s)])
        think = ["not recorded"] if figures.think_s is None else _seconds(figures.think_s)
        rows.append(["seconds of thinking", *think])
    return columns(rows, right=(1, 2, 3))


def _reuse(figures: TraceStatistics) -> str:
    lines = [
        f"infinite prefix cache: hit rate {figures.hit_rate:.4f}, "
        f"{figures.reused_tokens:,} of {figures.input_tokens:,} prompt tokens",
    ]
    if figures.num_pairs:
        lines.append(
            f"rewritten contexts: {figures.num_rewritten:,} of {figures.num_pairs:,} pairs of turns"
        )
    return "\n".join(lines)


def _lru(trace: Trace, figures: TraceStatistics, capacities: tuple[int, ...]) -> str:
    order = "by time" if trace.has_times else "one session after the other"
    rows = [["capacity", "tokens", "hit rate", "of blocks"]]
    for capacity in capacities:
        rates = figures.lru_hit_rate(capacity), figures.lru_block_hit_rate(capacity)
        rows.append(
            [format_capacity(capacity), f"{capacity:,}", *(f"{rate:.4f}" for rate in rates)]
        )
    if all(row[2] == row[3] for row in rows[1:]):
        rows = [row[:3] for row in rows]
    head = f"LRU cache of blocks, cold at the start, requests {order}"
    if figures.reused_tokens:
        head += f"; no more hits beyond {figures.lru.enough_tokens:,} tokens"
    return f"{head}\n" + columns(rows, right=(0, 1, 2, 3))


def _seconds(spread: Spread) -> list[str]:
    return [f"{value:,.0f}" if value >= 10 else f"{value:.3g}" for value in _values(spread)]


def _values(spread: Spread) -> tuple[float, float, float]:
    return spread.p50, spread.p90, spread.most


def _spread(spread: Spread) -> dict[str, float]:
    return {"p50": spread.p50, "p90": spread.p90, "max": spread.most}
