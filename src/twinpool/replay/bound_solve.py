"""The linear program over what to keep: rows of capacity in time, solved and proved by its dual.

Knows gaps, spans and limits; neither requests nor what a pool is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

from twinpool.errors import CapacityError, InvariantError
from twinpool.replay.bound_gaps import NO_PARENT, Gaps

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# A row is broken by more than this part of its limit, or it is not broken: solver tolerance.
_BROKEN = 1e-6
# With too many rows: how many of those allowed the first program has, and each round adds.
_FIRST_PART = 1 / 8
_STEP_PART = 1 / 8
_MAX_ROUNDS = 8
# A round that lowers the bound by less is the last.
_SMALL_GAIN = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One kind of memory: `units * per_unit + slots * per_slot <= total` at all times.

    Attributes:
        name: What to call it in an error.
        per_unit: What a unit of KV takes of it.
        per_slot: What a state slot takes of it.
        total: How much there is.
    """

    name: str
    per_unit: int
    per_slot: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A proved upper bound.

    Attributes:
        tokens: No choice of what to keep reuses more.
        num_rows: Rows of capacity that took part.
        num_hits: Variables.
        is_exact: True when no row that was left out is broken.
    """

    tokens: float
    num_rows: int
    num_hits: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class _Excess:
    """Cells whose row an answer breaks, rising, and by which part of the limit each."""

    cells: Ints
    parts: Floats


class _Spans:
    """Weighted spans of time, on a grid of cells between events."""

    def __init__(self, spans: Sequence[tuple[float, float]], owners: Sequence[int]) -> None:
        self.start_s = np.array([start for start, _ in spans], dtype=np.float64)
        self.end_s = np.array([end for _, end in spans], dtype=np.float64)
        self.owners = np.array(owners, dtype=np.int64)
        self.lo: Ints = np.empty(0, dtype=np.int64)
        self.hi: Ints = np.empty(0, dtype=np.int64)

    def place(self, times_s: Floats) -> None:
        """Find the cells `[lo, hi)` of each span; a cell is named by the time it starts at."""
        self.lo = np.searchsorted(times_s, self.start_s)
        self.hi = np.searchsorted(times_s, self.end_s)

    def usage(self, weights: Floats, num_cells: int) -> Floats:
        """Return the weight in each cell of all spans, given each owner's."""
        change = np.zeros(num_cells + 1)
        np.add.at(change, self.lo, weights[self.owners])
        np.subtract.at(change, self.hi, weights[self.owners])
        return np.cumsum(change[:-1])


class Program:
    """The linear program of a schedule within limits.

    Args:
        gaps: The schedule's hits and holdings.
        limits: Every kind of memory.

    Raises:
        CapacityError: If what runs at one moment is more than a limit allows.
    """

    def __init__(self, gaps: Gaps, limits: Sequence[Limit]) -> None:
        hits = gaps.hits
        self._limits = limits
        self._free_tokens = gaps.free_tokens
        self._tokens = np.array([hit.tokens for hit in hits], dtype=np.float64)
        self._units = np.array([hit.units for hit in hits], dtype=np.float64)
        self._ones = np.ones(len(hits))
        kv = [(span, number) for number, hit in enumerate(hits) for span in hit.kv_spans]
        slots = [(hit.slot_span, number) for number, hit in enumerate(hits)]
        slots = [(span, number) for span, number in slots if span[0] < span[1]]
        self._kv = _Spans([span for span, _ in kv], [number for _, number in kv])
        self._slots = _Spans([span for span, _ in slots], [number for _, number in slots])
        self._order = _order_rows(np.array([hit.parent for hit in hits], dtype=np.int64))
        self._place(gaps)

    def _place(self, gaps: Gaps) -> None:
        kv_holds = _Spans([hold[:2] for hold in gaps.kv_holds], range(len(gaps.kv_holds)))
        slot_holds = _Spans(gaps.slot_holds, range(len(gaps.slot_holds)))
        spans = (self._kv, self._slots, kv_holds, slot_holds)
        times = [array for span in spans for array in (span.start_s, span.end_s)]
        self._times_s = np.unique(np.concatenate(times))
        for span in spans:
            span.place(self._times_s)
        cells = len(self._times_s)
        held = np.array([hold[2] for hold in gaps.kv_holds], dtype=np.float64)
        self._held_units = kv_holds.usage(held, cells)
        self._held_slots = slot_holds.usage(np.ones(len(gaps.slot_holds)), cells)
        # Where nothing ends, the next cell holds all that this one does: its row says the same
        # or more.
        self._is_peak = np.zeros(cells, dtype=bool)
        for span in spans:
            self._is_peak[span.hi - 1] = True
        for limit in self._limits:
            self._check(limit)

    def _check(self, limit: Limit) -> None:
        held = self._held(limit)
        worst = int(held.argmax()) if len(held) else 0
        if len(held) and held[worst] > limit.total:
            raise CapacityError(
                f"at {self._times_s[worst]:.3f} s the running requests alone hold"
                f" {held[worst]:.0f} of {limit.total} {limit.name}",
                hint="bound the schedule within the pools that it ran in, or larger ones",
            )

    def _held(self, limit: Limit) -> Floats:
        return limit.per_unit * self._held_units + limit.per_slot * self._held_slots

    def _usage(self, limit: Limit, kept: Floats) -> Floats:
        """Return what is used of a limit in each cell when so much of each hit is kept."""
        cells = len(self._times_s)
        kv = self._kv.usage(kept * self._units, cells) if limit.per_unit else 0.0
        slots = self._slots.usage(kept, cells) if limit.per_slot else 0.0
        return self._held(limit) + limit.per_unit * kv + limit.per_slot * slots

    def solve(self, max_rows: int) -> Solution:
        """Solve, with all rows where they are few enough, else with those that matter.

        Args:
            max_rows: Rows of capacity at most. Above it the program begins with an even choice
                and adds, round by round, rows that the answer breaks. Rows left out only raise
                the bound.
        """
        wanted = self._wanted()
        num_wanted = sum(map(len, wanted))
        share = 1.0 if num_wanted <= max_rows else max_rows * _FIRST_PART / num_wanted
        chosen = [cells[_even(len(cells), int(len(cells) * share))] for cells in wanted]
        best = float("inf")
        for _ in range(_MAX_ROUNDS):
            kept, proved = self._solve(chosen)
            gain, best = best - proved, min(best, proved)
            broken = self._broken(wanted, chosen, kept)
            is_exact = not any(len(excess.cells) for excess in broken)
            left = max_rows - sum(map(len, chosen))
            if is_exact or left <= 0 or gain < _SMALL_GAIN * best:
                break
            chosen = _with_worst(chosen, broken, min(left, int(max_rows * _STEP_PART) + 1))
        return Solution(
            tokens=best,
            num_rows=sum(map(len, chosen)),
            num_hits=len(self._tokens),
            is_exact=is_exact,
        )

    def _wanted(self) -> list[Ints]:
        """Return, per limit, the cells whose row could ever bind."""
        return [
            np.flatnonzero(self._is_peak & (self._usage(limit, self._ones) > limit.total))
            for limit in self._limits
        ]

    def _broken(self, wanted: list[Ints], chosen: list[Ints], kept: Floats) -> list[_Excess]:
        """Return the rows left out that an answer breaks, and by which part of their limit."""
        broken = []
        for limit, cells, taken in zip(self._limits, wanted, chosen, strict=True):
            left = np.setdiff1d(cells, taken, assume_unique=True)
            # Of no memory at all every use is too much.
            parts = (self._usage(limit, kept)[left] - limit.total) / max(limit.total, 1)
            is_broken = parts > _BROKEN
            broken.append(_Excess(left[is_broken], parts[is_broken]))
        return broken

    def _solve(self, chosen: list[Ints]) -> tuple[Floats, float]:
        """Solve with the chosen rows; returns how much of each hit is kept, and what is proved."""
        num_hits = len(self._tokens)
        if not sum(map(len, chosen)):
            return self._ones, self._free_tokens + float(self._tokens.sum())
        rows = [self._rows(limit, cells) for limit, cells in zip(self._limits, chosen, strict=True)]
        matrix = vstack([*(row for row, _ in rows), self._order], format="csr")
        room = np.concatenate([*(right for _, right in rows), np.zeros(self._order.shape[0])])
        scale = float(self._tokens.mean())
        answer = linprog(
            -self._tokens / scale, A_ub=matrix, b_ub=room, bounds=(0.0, 1.0), method="highs"
        )
        if answer.status != 0:
            raise InvariantError(
                f"the solver gave up: {answer.message}",
                ledger={"rows": len(room), "hits": num_hits},
            )
        # Weak duality: any prices that are not negative prove a bound, whatever the solver's
        # tolerance was. Its own value could be a trifle too low.
        prices = np.maximum(-answer.ineqlin.marginals, 0.0) * scale
        worth = np.maximum(self._tokens - matrix.T @ prices, 0.0)
        kept: Floats = np.asarray(answer.x, dtype=np.float64)
        return kept, self._free_tokens + float(room @ prices + worth.sum())

    def _rows(self, limit: Limit, cells: Ints) -> tuple[csr_array, Floats]:
        """Build the rows of a limit at the given cells, and the room that is left in each.

        Both are in units of KV, or in slots where the limit is on slots alone: bytes would be
        numbers too large for the solver's tolerances.
        """
        measure = limit.per_unit or limit.per_slot
        parts = []
        for spans, weights in (
            (self._kv, limit.per_unit / measure * self._units),
            (self._slots, limit.per_slot / measure * self._ones),
        ):
            first, last = np.searchsorted(cells, spans.lo), np.searchsorted(cells, spans.hi)
            counts = last - first
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            owners = np.repeat(spans.owners, counts)
            places = (np.repeat(first, counts) + offsets, owners)
            parts.append(coo_array((weights[owners], places), shape=(len(cells), len(self._ones))))
        room = (limit.total - self._held(limit)[cells]) / measure
        return csr_array(parts[0].tocsr() + parts[1].tocsr()), room


def _order_rows(parents: Ints) -> csr_array:
    """Build the rows that say: no more of a hit than of the one that it continues."""
    children = np.flatnonzero(parents != NO_PARENT)
    rows = np.arange(len(children))
    values = np.concatenate([np.ones(len(children)), -np.ones(len(children))])
    places = (np.concatenate([rows, rows]), np.concatenate([children, parents[children]]))
    return csr_array(coo_array((values, places), shape=(len(children), len(parents))))


def _with_worst(chosen: list[Ints], broken: list[_Excess], count: int) -> list[Ints]:
    """Add broken rows, about `count`: of each stretch of time the worst one."""
    total = sum(len(excess.cells) for excess in broken)
    grown = []
    for cells, excess in zip(chosen, broken, strict=True):
        length = len(excess.cells)
        share = min(length, length * count // total)
        if share:
            first = _even(length, share)
            stretch = np.searchsorted(first, np.arange(length), side="right")
            by_excess = np.lexsort((excess.parts, stretch))
            last = np.append(first[1:], length) - 1
            cells = np.union1d(cells, excess.cells[by_excess[last]])
        grown.append(cells)
    return grown


def _even(length: int, count: int) -> Ints:
    """Return `count` places below `length`, evenly apart, from 0."""
    return np.arange(count, dtype=np.int64) * length // max(count, 1)
