"""Where things stand in the cliff curve: the axes of both panels and the places of cells.

Knows sizes and scales; draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinpool.replay.report.axes import Scale, thinned, ticks
from twinpool.replay.report.document import Cell

WIDTH, HEIGHT = 980, 622
LEFT, RIGHT = 58.0, 780.0
HIT_TOP, HIT_FOOT = 66.0, 306.0
RATE_TOP, RATE_FOOT = 386.0, 566.0
# An axis is logarithmic from this ratio of its ends on.
_LOG_FROM = 3.0
_TICK_GAP = 44.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveAxes:
    """Scales of the curve.

    Attributes:
        split: State slots to x.
        hit: Hit rate to y.
        rate: Output tokens per second to y.
        rate_ticks: Values of the lower upright axis.
        slots: State slots that get a tick.
        kv_tokens: KV tokens beside each of `slots`; empty if the same slots leave different KV.
        references: Hit rates that lines are drawn at, which texts keep clear of.
    """

    split: Scale
    hit: Scale
    rate: Scale
    rate_ticks: tuple[float, ...]
    slots: tuple[int, ...]
    kv_tokens: tuple[int, ...]
    references: tuple[float, ...]

    def at(self, cell: Cell, panel: str) -> tuple[float, float]:
        """Place a cell in a panel, `hit` or `rate`."""
        x = self.split(cell.slots)
        if panel == "hit":
            return x, self.hit(cell.hit_rate or 0.0)
        return x, self.rate(cell.tokens_per_s or 0.0)


def curve_axes(
    cells: Sequence[Cell], first: Sequence[int], references: Sequence[float] = ()
) -> CurveAxes:
    """Choose the axes.

    Args:
        cells: Cells that are shown; two different numbers of state slots at least.
        first: State slots that get a tick before others.
        references: Hit rates that lines are drawn at.
    """
    slots = sorted({cell.slots for cell in cells if cell.slots})
    low, high = slots[0], slots[-1]
    # A little air, so that the outermost dots stay inside.
    split = Scale(
        low=low, high=high, start=LEFT + 16, end=RIGHT - 16, is_log=high / low >= _LOG_FROM
    )
    rates = ticks(max(cell.tokens_per_s or 0.0 for cell in cells), 5)
    ahead = [slots.index(value) for value in dict.fromkeys((*first, low, high)) if value in slots]
    shown = [slots[at] for at in thinned([split(value) for value in slots], _TICK_GAP, ahead)]
    return CurveAxes(
        split=split,
        hit=Scale(low=0.0, high=1.0, start=HIT_FOOT, end=HIT_TOP),
        rate=Scale(low=0.0, high=rates[-1], start=RATE_FOOT, end=RATE_TOP),
        rate_ticks=tuple(rates),
        slots=tuple(shown),
        kv_tokens=_beside(cells, shown),
        references=tuple(references),
    )


def _beside(cells: Sequence[Cell], slots: Sequence[int]) -> tuple[int, ...]:
    """Find the KV tokens that go with numbers of slots, if one axis can show them for all."""
    found: dict[int, set[int]] = {}
    for cell in cells:
        found.setdefault(cell.slots, set()).add(cell.kv_tokens)
    # Draft states and pages move a percent of the rows; more is another amount of memory.
    if any(min(found[value]) < 0.98 * max(found[value]) for value in slots):
        return ()
    kv_tokens = tuple(max(found[value]) for value in slots)
    return kv_tokens if all(kv_tokens) else ()
