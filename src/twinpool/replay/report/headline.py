"""The answer: the sentence on top of the page, the figures below it, the flags to paste.

Words what a sweep recommends; recommends nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twinpool.replay.report import numerals
from twinpool.replay.report.document import Cell, Sweep, number
from twinpool.replay.report.markup import Markup, join, tag

_ENGINES = {"sglang": "SGLang", "vllm": "vLLM", "twinpool": "twinpool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of the best cell beside that of the baseline.

    Attributes:
        name: What it is.
        best: Its value, as text.
        baseline: That of the baseline; empty without one.
    """

    name: str
    best: str
    baseline: str


def headline(sweep: Sweep) -> Markup:
    """Word the answer in one sentence."""
    best = sweep.best
    if best is None or not best.is_shown:
        return join(f"None of {len(sweep.cells)} cells could be replayed to the end.")
    parts = [
        _split(sweep.recommended, best),
        join(
            ": ",
            tag("strong", numerals.percent(best.hit_rate)),
            " of the prompt tokens then come from the cache and ",
            tag("strong", f"{numerals.large(best.tokens_per_s)} tokens/s"),
            " come out",
        ),
        _against(sweep.baseline, best),
    ]
    if sweep.bound and sweep.bound[0] > 0 and best.hit_rate is not None:
        share = numerals.percent(best.hit_rate / sweep.bound[0])
        bound = numerals.percent(sweep.bound[0])
        parts.append(
            join(
                "; that is ",
                tag("strong", share),
                f" of the {bound} that no policy can pass ({sweep.bound[1]} bound)",
            )
        )
    return join(*parts, ".")


def figures(sweep: Sweep) -> list[Figure]:
    """List the figures by which splits are compared."""
    best, baseline = sweep.best, sweep.baseline
    if best is None or not best.is_shown:
        return []
    other = baseline if baseline is not None and baseline.is_shown else None

    def figure(name: str, of: Mapping[int, str]) -> Figure:
        return Figure(name=name, best=of[0], baseline=of.get(1, ""))

    cells = [best] if other is None or other is best else [best, other]
    return [
        figure("hit rate", {at: numerals.percent(c.hit_rate) for at, c in enumerate(cells)}),
        figure(
            "output tokens/s", {at: numerals.large(c.tokens_per_s) for at, c in enumerate(cells)}
        ),
        *(
            figure(
                f"time to first token, {rank}",
                {at: numerals.seconds(c.spreads["ttft_s"][rank]) for at, c in enumerate(cells)},
            )
            for rank in ("p50", "p90")
        ),
    ]


def reasons(recommended: Mapping[str, Any]) -> Markup:
    """Say why this split, and how far the cliffs are."""
    why, margin = recommended.get("why"), recommended.get("margin")
    return join(
        tag("p", "Why this split: ", str(why).rstrip("."), ".") if why else None,
        tag("p", "Margin: ", _margin(margin).rstrip("."), ".")
        if margin not in (None, "")
        else None,
    )


def flags(recommended: Mapping[str, Any]) -> Markup:
    """Show the flags of each engine in a block of its own, and what to know of them."""
    notes = recommended.get("flag_notes") or {}
    blocks = [
        tag(
            "figure",
            tag("figcaption", _ENGINES.get(engine, engine)),
            tag("pre", tag("code", line if isinstance(line, str) else " ".join(map(str, line)))),
            class_="flags",
        )
        for engine, line in (recommended.get("flags") or {}).items()
        if line
    ]
    said = [
        tag("p", f"{_ENGINES.get(engine, engine)}: {note}.", class_="quiet")
        for engine, note in notes.items()
    ]
    return (
        join(*blocks, *said)
        if blocks
        else tag("p", "The sweep recommends no split.", class_="none")
    )


def _split(recommended: Mapping[str, Any], best: Cell) -> Markup:
    slots = number(recommended.get("state_slots"))
    kv_tokens = number(recommended.get("kv_tokens"))
    if not slots:
        return tag("strong", best.label)
    ratio = number(recommended.get("ratio"))
    parts = [join("Give the states ", tag("strong", f"{numerals.whole(slots)} slots"))]
    if kv_tokens:
        tokens = tag("strong", f"{numerals.large(kv_tokens)} tokens")
        parts.append(join(" and the KV pool ", tokens))
    if ratio is not None:
        parts.append(join(f" (ratio {numerals.ratio(ratio)})"))
    # Figures are those of a cell that was replayed, which the advice need not hit exactly.
    if best.slots and best.slots != slots:
        parts.append(join(f"; replayed at {numerals.whole(best.slots)} slots"))
    return join(*parts)


def _against(baseline: Cell | None, best: Cell) -> Markup | None:
    if baseline is None or baseline is best:
        return None
    if not baseline.is_shown:
        return join(f", where the baseline ({baseline.label}) failed")
    words = (
        f", against {numerals.percent(baseline.hit_rate)} and "
        f"{numerals.large(baseline.tokens_per_s)} tokens/s at the baseline ({baseline.label})"
    )
    if not baseline.tokens_per_s or best.tokens_per_s is None:
        return join(words)
    gain = tag("strong", numerals.times(best.tokens_per_s / baseline.tokens_per_s))
    return join(words, ", ", gain, " the throughput")


def _margin(margin: object) -> str:
    if isinstance(margin, Mapping):
        return ", ".join(f"{name} {_margin(value)}" for name, value in margin.items())
    value = number(margin)
    return str(margin) if value is None else numerals.percent(value)
