"""Recovery: bytes per slot and per row out of the printed sizes of a boot, with their error.

A log prints gibibytes with two decimals, padding included. Dividing by the counts gives an interval
that holds the true, whole number of bytes. Exact fractions; knows no model and no file.

    slot = (conv + recurrent) / (K + 1)         row = KV / (tokens + page)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.boot_reader import KvLine, PrintedSize
from twinpool.memory.boots import RankPools
from twinpool.memory.running_cap import RunningCap, running_cap
from twinpool.memory.sizing import Budget, PoolSizes, size_pools
from twinpool.spec.geometry import Geometry
from twinpool.units import DType

LARGEST_PAGE = 256


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from `low` to `high`, one of which is the true one.

    Attributes:
        low: The least it can be.
        high: The most it can be.
    """

    low: int
    high: int

    @property
    def middle(self) -> int:
        """The number that is at most half the interval off."""
        return (self.low + self.high) // 2

    @property
    def is_exact(self) -> bool:
        """True when only one number is left."""
        return self.low == self.high

    @property
    def error(self) -> Fraction:
        """How far off the middle can be, as part of it; 0 when exact."""
        if self.is_exact:
            return Fraction(0)
        off = max(self.high - self.middle, self.middle - self.low)
        return Fraction(off, max(self.middle, 1))

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)


NOTHING = Interval(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Bytes of one slot and one row on one rank.

    Attributes:
        state_slots: Slots without padding; 0 without a state line.
        kv_tokens: Rows without padding that serve.
        page: Page sizes that the log allows.
        conv: Conv states of one slot.
        recurrent: Recurrent states of one slot.
        kv_parts: Keys and values of one row, or one number for both.
        draft_row: What draft models add to one row.
        draft_states: Bytes of the draft states, all of them; exactly 0 without speculation.
        kv_dtype: Dtype of rows, without `torch.`; empty when the log does not say.
    """

    state_slots: int
    kv_tokens: int
    page: Interval
    conv: Interval
    recurrent: Interval
    kv_parts: tuple[Interval, ...]
    draft_row: Interval
    draft_states: Interval
    kv_dtype: str

    @property
    def slot(self) -> Interval:
        """Bytes of one state slot."""
        return self.conv + self.recurrent

    @property
    def row(self) -> Interval:
        """Bytes of one row, those of draft models included."""
        return sum(self.kv_parts, self.draft_row)

    @property
    def page_size(self) -> int:
        """The page size where it is known, else 1."""
        return self.page.low if self.page.is_exact else 1

    def geometries(self) -> tuple[Geometry, Geometry, Geometry]:
        """Return three geometries: the nearest, the dearest slots, and the dearest rows."""
        slot, row = self.slot, self.row
        return (
            self._geometry(slot.middle, row.middle),
            self._geometry(slot.high, row.low),
            self._geometry(slot.low, row.high),
        )

    def matched(self, geometry: Geometry) -> Recovered:
        """Replace the intervals by the exact bytes of a model that fits them.

        Args:
            geometry: The model's; `mismatches` must find nothing.
        """
        parts = (geometry.key_bytes, geometry.value_bytes)
        exact = parts if len(self.kv_parts) > 1 else (sum(parts),)
        drafts = geometry.draft_row_bytes
        return replace(
            self,
            conv=Interval(geometry.conv_bytes, geometry.conv_bytes),
            recurrent=Interval(geometry.recurrent_bytes, geometry.recurrent_bytes),
            kv_parts=tuple(Interval(part, part) for part in exact),
            draft_row=Interval(drafts, drafts) if drafts else self.draft_row,
        )

    def _geometry(self, slot_bytes: int, row_bytes: int) -> Geometry:
        """Carry two byte counts; how they are made up matters to no sizing."""
        return Geometry(
            key_bytes=max(row_bytes, 1),
            value_bytes=0,
            conv_bytes=0,
            recurrent_bytes=slot_bytes,
            kv_dtype=DType.BFLOAT16,
            conv_dtype=DType.BFLOAT16,
            state_dtype=DType.FLOAT32,
            tp=1,
            num_full_layers=1,
            num_linear_layers=1 if slot_bytes else 0,
        )


def recover(pools: RankPools, page_size: int | None = None) -> Recovered:
    """Work out the bytes of one slot and one row of one rank.

    Args:
        pools: What the rank printed.
        page_size: Rows of a page, from the server's arguments or a flag; None: every page up to
            256 that divides the rows is possible, and the interval is as wide as they make it.

    Raises:
        ConfigError: If the rows are no whole number of pages.
    """
    page = _pages(pools.kv.tokens, page_size)
    state = pools.state
    padded = Interval(state.slots + 1, state.slots + 1) if state else Interval(1, 1)
    drafts = (state.draft_recurrent, state.draft_conv) if state else ()
    return Recovered(
        state_slots=state.slots if state else 0,
        kv_tokens=pools.kv_tokens,
        page=page,
        conv=_per_unit(state.conv, padded) if state else NOTHING,
        recurrent=_per_unit(state.recurrent, padded) if state else NOTHING,
        kv_parts=_per_row(pools.kv, page),
        draft_row=sum(
            (part for line in pools.drafts for part in _per_row(line, page)), start=NOTHING
        ),
        draft_states=sum(
            (_per_unit(size, Interval(1, 1)) for size in drafts if size is not None), start=NOTHING
        ),
        kv_dtype=pools.kv.dtype,
    )


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A number of a model that its log does not bear out.

    Attributes:
        name: What it is, such as `recurrent state bytes per slot`.
        kind: `state` or `kv`.
        expected: What the model has.
        printed: What the log allows.
    """

    name: str
    kind: str
    expected: int
    printed: Interval


def mismatches(recovered: Recovered, geometry: Geometry) -> tuple[Mismatch, ...]:
    """Say which bytes of a model lie outside what a log allows.

    Args:
        recovered: From the log.
        geometry: From the model's config, for the same rank.
    """
    keys, values = geometry.key_bytes, geometry.value_bytes
    rows = (
        (("key bytes per token", keys), ("value bytes per token", values))
        if len(recovered.kv_parts) > 1
        else (("KV bytes per token", keys + values),)
    )
    checks = [
        ("conv state bytes per slot", "state", geometry.conv_bytes, recovered.conv),
        ("recurrent state bytes per slot", "state", geometry.recurrent_bytes, recovered.recurrent),
        *(
            (name, "kv", expected, printed)
            for (name, expected), printed in zip(rows, recovered.kv_parts, strict=True)
        ),
    ]
    if geometry.draft_row_bytes:
        name = "draft KV bytes per token"
        checks.append((name, "kv", geometry.draft_row_bytes, recovered.draft_row))
    return tuple(
        Mismatch(name, kind, expected, printed)
        for name, kind, expected, printed in checks
        if expected not in printed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What a server reserves per running request, and what it was asked for.

    Attributes:
        slots_per_request: `S`.
        draft_tokens: `D`; 0 leaves draft states out of the arithmetic.
        asked: `--max-running-requests`; None when not known.
        context_length: The model's longest sequence; None when not known.
    """

    slots_per_request: int
    draft_tokens: int = 0
    asked: int | None = None
    context_length: int | None = None


def budget_at(recovered: Recovered, geometry: Geometry, reserve: Reserve) -> Budget:
    """Return the budget that gives the pools of the log with those bytes per slot and row.

    Args:
        recovered: From the log.
        geometry: One of its geometries.
        reserve: What a running request reserves.
    """
    slots = recovered.state_slots
    held = (slots + 1) * geometry.slot_bytes if slots else 0
    if reserve.draft_tokens and slots:
        requests = slots // reserve.slots_per_request
        requests = requests if reserve.asked is None else min(requests, reserve.asked)
        held += (requests + 1) * reserve.draft_tokens * geometry.slot_bytes
    return Budget(
        rest_bytes=held + recovered.kv_tokens * geometry.row_bytes,
        page_size=recovered.page_size,
        slots_per_request=reserve.slots_per_request,
        draft_tokens=reserve.draft_tokens if slots else 0,
        max_running_requests=reserve.asked,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What the bytes of a log give at one split.

    Attributes:
        sizes: The pools with the nearest bytes per slot and row.
        slots: State slots that are possible within the log's error.
        tokens: Rows that are possible within the log's error.
        cap: How many requests may run at once; None when not even one may.
        refused: Why no request may run; empty when one may.
    """

    sizes: PoolSizes
    slots: Interval
    tokens: Interval
    cap: RunningCap | None
    refused: str = ""

    @property
    def ratio(self) -> Fraction:
        """State bytes, drafts included, to KV bytes: what `--mamba-full-memory-ratio` compares."""
        sizes = self.sizes
        return Fraction(
            sizes.state_bytes + sizes.draft_bytes, sizes.kv_tokens * sizes.geometry.row_bytes
        )


def split_again(
    recovered: Recovered,
    reserve: Reserve,
    *,
    ratio: Fraction = Fraction(1),
    pinned_slots: int | None = None,
) -> Split:
    """Split the bytes of a log in another way.

    Args:
        recovered: From the log.
        reserve: What a running request reserves.
        ratio: State bytes to KV bytes; used when no slots are pinned.
        pinned_slots: State slots; they win over the ratio.

    Raises:
        CapacityError: If one of the pools would be empty.
        ConfigError: If a value is out of range.
    """
    sizes = [
        size_pools(
            geometry,
            budget_at(recovered, geometry, reserve),
            ratio=ratio,
            pinned_slots=pinned_slots,
        )
        for geometry in recovered.geometries()
    ]
    cap, refused = None, ""
    try:
        cap = running_cap(sizes[0], reserve.asked, context_length=reserve.context_length)
    except CapacityError as error:
        refused = error.message
    return Split(
        sizes=sizes[0],
        slots=_around(pools.state_slots for pools in sizes),
        tokens=_around(pools.kv_tokens for pools in sizes),
        cap=cap,
        refused=refused,
    )


def _around(numbers: Iterable[int]) -> Interval:
    known = list(numbers)
    return Interval(min(known), max(known))


def _pages(tokens: int, page_size: int | None) -> Interval:
    if page_size is None:
        fitting = [page for page in range(1, LARGEST_PAGE + 1) if tokens % page == 0]
        return Interval(1, max(fitting))
    if page_size < 1:
        raise ConfigError(f"--page-size is {page_size}", hint="use 1 or more")
    if tokens % page_size:
        raise ConfigError(
            f"the log has {tokens} KV rows, which are no whole number of pages of {page_size}",
            hint="give the server's own --page-size, or leave it out",
        )
    return Interval(page_size, page_size)


def _per_row(line: KvLine, page: Interval) -> tuple[Interval, ...]:
    padded = Interval(line.tokens + page.low, line.tokens + page.high)
    return tuple(_per_unit(size, padded) for size in line.sizes)


def _per_unit(size: PrintedSize, units: Interval) -> Interval:
    """Divide a printed size; where no whole number lies inside, its neighbours are returned."""
    low = math.ceil(size.low_bytes / units.high)
    high = math.floor(size.high_bytes / units.low)
    return Interval(min(low, high), max(low, high))
