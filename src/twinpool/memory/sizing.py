"""Sizing: how many state slots and KV rows a number of bytes gives, in exact integers.

Knows no machine, no flag and no workload: bytes and a geometry go in, counts come out.

    rest bytes  =  (K + 1) slots  +  draft states  +  tokens x row   [+ what is left over]
                         |                              |
                 one slot is padding         one page of padding stands outside `rest`,
                                             as in the reference engine

Source: the reference engine's `kv_cache_configurator.py`; ours differs in that every step is an
integer or a fraction, and in that every case that cannot work is an error with its numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from twinpool.errors import CapacityError, ConfigError
from twinpool.spec.geometry import Geometry
from twinpool.units import format_bytes

MAX_INDEX = 2**31 - 1
_RATIO = re.compile(r"[0-9]{1,12}(\.[0-9]{1,18})?|\.[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What both pools are cut from.

    Attributes:
        rest_bytes: Bytes left for both pools after the weights, or `--pool-memory`.
        page_size: Rows that are handed out together, 1 or more.
        slots_per_request: State slots that a running request reserves, `S`.
        draft_tokens: Speculative draft tokens per request, `D`; 0 without speculation.
        max_running_requests: Requests asked to run at once; None: as many as fit.
        max_total_tokens: Upper bound for rows; None: as many as fit.
    """

    rest_bytes: int
    page_size: int = 1
    slots_per_request: int = 1
    draft_tokens: int = 0
    max_running_requests: int | None = None
    max_total_tokens: int | None = None

    def __post_init__(self) -> None:
        _at_least("bytes for the pools", self.rest_bytes, 1)
        _at_least("page size", self.page_size, 1)
        _at_least("slots per request", self.slots_per_request, 1)
        _at_least("number of draft tokens", self.draft_tokens, 0)
        if self.max_running_requests is not None:
            _at_least("--max-running-requests", self.max_running_requests, 1)
        if self.max_total_tokens is not None:
            _at_least("--max-total-tokens", self.max_total_tokens, self.page_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """Both pools: counts leave the padding out, bytes include it.

    Attributes:
        geometry: Bytes of a row and a slot.
        rest_bytes: What the pools were cut from.
        page_size: Rows that are handed out together.
        slots_per_request: State slots that a running request reserves, `S`.
        draft_tokens: Draft states per running request, `D`.
        state_slots: Slots that can be used, `K`; 0 for a model without linear layers.
        kv_tokens: Rows that can be used, a multiple of `page_size`; 0 for a model without
            full-attention layers.
        fitting_tokens: Rows that would fit if `--max-total-tokens` did not bound them.
        draft_requests: Requests whose draft states have room, padding left out; 0 without drafts.
    """

    geometry: Geometry
    rest_bytes: int
    page_size: int
    slots_per_request: int
    draft_tokens: int
    state_slots: int
    kv_tokens: int
    fitting_tokens: int
    draft_requests: int

    @property
    def padded_slots(self) -> int:
        """Slots to allocate: the usable ones and one that padded lanes write to."""
        return self.state_slots + 1 if self.geometry.slot_bytes else 0

    @property
    def padded_tokens(self) -> int:
        """Rows to allocate: the usable ones and one page that padding writes to."""
        return self.kv_tokens + self.page_size if self.geometry.row_bytes else 0

    @property
    def state_bytes(self) -> int:
        """Bytes of the state pool, padding slot included, draft states left out."""
        return self.padded_slots * self.geometry.slot_bytes

    @property
    def draft_bytes(self) -> int:
        """Bytes of the draft states, which have their own buffer."""
        if not self.draft_tokens or not self.geometry.slot_bytes:
            return 0
        return (self.draft_requests + 1) * self.draft_tokens * self.geometry.slot_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV pool, padding page included."""
        return self.padded_tokens * self.geometry.row_bytes


def parse_ratio(value: str | float | Decimal | Fraction) -> Fraction:
    """Read a ratio of state bytes to KV bytes exactly as it is written.

    Args:
        value: The flag's text, such as `0.9`, or a number; a float counts as its shortest text.

    Raises:
        ConfigError: If it is not a finite number above 0.
    """
    if isinstance(value, Fraction):
        ratio = value
    else:
        text = str(value).strip()
        if not _RATIO.fullmatch(text):
            raise ConfigError(
                f"ratio of state bytes to KV bytes is {text[:40]!r}",
                hint="use a plain decimal number above 0, such as 0.9",
            )
        ratio = Fraction(text)
    if ratio <= 0:
        raise ConfigError(
            f"ratio of state bytes to KV bytes is {float(ratio):g}, which leaves no state slot",
            hint="use a number above 0, such as 0.9",
        )
    return ratio


def size_pools(
    geometry: Geometry,
    budget: Budget,
    *,
    ratio: Fraction,
    pinned_slots: int | None = None,
    prefix_cache: bool = True,
) -> PoolSizes:
    """Size both pools the way the flags ask for.

    Args:
        geometry: Bytes of a row and a slot.
        budget: What the pools are cut from.
        ratio: State bytes to KV bytes; used when no slots are pinned.
        pinned_slots: `--max-mamba-cache-size`; it wins over the ratio.
        prefix_cache: False: states are kept for running requests alone, so that with
            `max_running_requests` set there are exactly that many.

    Raises:
        CapacityError: If one of the pools would be empty.
        ConfigError: If a value is out of range.
    """
    if pinned_slots is not None:
        return split_pinned(geometry, budget, pinned_slots)
    if not prefix_cache and budget.max_running_requests is not None:
        return split_pinned(geometry, budget, budget.max_running_requests)
    return split_by_ratio(geometry, budget, ratio)


def split_by_ratio(geometry: Geometry, budget: Budget, ratio: Fraction) -> PoolSizes:
    """Split the bytes so that state bytes are `ratio` times KV bytes.

    With `B = rest * r / (1 + r)`: `K = floor((B - b) / b)`, and with drafts
    `K = floor((B - b (1 + D)) / (b (1 + D / S)))`; the KV pool takes what is left.

    Args:
        geometry: Bytes of a row and a slot.
        budget: What the pools are cut from.
        ratio: State bytes to KV bytes, above 0; a model without full-attention layers gets all
            bytes as slots.

    Raises:
        CapacityError: If the state share holds no slot, or the rest no page.
    """
    if not geometry.slot_bytes:
        return _with_slots(geometry, budget, 0)
    ratio = parse_ratio(ratio)
    whole = Fraction(budget.rest_bytes)
    share = whole * ratio / (1 + ratio) if geometry.row_bytes else whole
    drafts = budget.draft_tokens
    per_slot = geometry.slot_bytes * (1 + Fraction(drafts, budget.slots_per_request))
    slots = math.floor((share - geometry.slot_bytes * (1 + drafts)) / per_slot)
    if slots < 1:
        raise CapacityError(
            f"the state share of {format_bytes(budget.rest_bytes)} at ratio {float(ratio):g} is "
            f"{format_bytes(math.floor(share))}, less than {2 + drafts} state slots of "
            f"{format_bytes(geometry.slot_bytes)}",
            hint="give the pools more memory, raise --mamba-full-memory-ratio, or halve the state "
            "with --mamba-ssm-dtype bfloat16",
        )
    return _with_slots(geometry, budget, slots)


def split_pinned(geometry: Geometry, budget: Budget, slots: int) -> PoolSizes:
    """Give the state pool a fixed number of slots and the KV pool the rest.

    Args:
        geometry: Bytes of a row and a slot.
        budget: What the pools are cut from.
        slots: State slots, 1 or more; ignored for a model without linear layers.

    Raises:
        CapacityError: If the slots leave no page for the KV pool.
    """
    if not geometry.slot_bytes:
        return _with_slots(geometry, budget, 0)
    _at_least("--max-mamba-cache-size", slots, 1)
    return _with_slots(geometry, budget, slots)


def balanced_ratio(
    token_equiv: Fraction, average_context: int, *, slots_per_request: int, draft_tokens: int = 0
) -> Fraction:
    """Find the ratio at which both pools run out together: `(S + D) (b / c) / L`.

    Args:
        token_equiv: Rows that one slot is worth, `b / c`.
        average_context: Mean tokens per running request, prompt and output, `L`.
        slots_per_request: `S`.
        draft_tokens: `D`.

    Raises:
        ConfigError: If the average context is below 1.
    """
    _at_least("average context", average_context, 1)
    return (slots_per_request + draft_tokens) * token_equiv / average_context


def format_ratio(ratio: Fraction) -> str:
    """Print a ratio for people: one decimal from 1 on, two below."""
    return f"{float(round(ratio, 1)):.1f}" if ratio >= 1 else f"{float(round(ratio, 2)):.2f}"


def _with_slots(geometry: Geometry, budget: Budget, slots: int) -> PoolSizes:
    """Fill the KV pool with what `slots`, their padding and the draft states leave."""
    padded_slots = slots + 1 if geometry.slot_bytes else 0
    draft_requests = _draft_requests(geometry, budget, slots)
    # Padded lanes need draft states too, hence one more; without drafts the product is 0.
    draft_slots = (draft_requests + 1) * budget.draft_tokens
    taken = (padded_slots + draft_slots) * geometry.slot_bytes
    fitting = _fitting_tokens(geometry, budget, slots, taken)
    tokens = min(fitting, budget.max_total_tokens or fitting)
    tokens = tokens // budget.page_size * budget.page_size
    for name, count in (("KV rows", tokens + budget.page_size), ("state slots", padded_slots)):
        if count > MAX_INDEX:
            raise ConfigError(
                f"{count} {name} are more than a 32-bit index can name",
                hint="bound the pools with --max-total-tokens or --max-mamba-cache-size",
            )
    return PoolSizes(
        geometry=geometry,
        rest_bytes=budget.rest_bytes,
        page_size=budget.page_size,
        slots_per_request=budget.slots_per_request,
        draft_tokens=budget.draft_tokens,
        state_slots=slots,
        kv_tokens=tokens,
        fitting_tokens=fitting,
        draft_requests=draft_requests,
    )


def _fitting_tokens(geometry: Geometry, budget: Budget, slots: int, taken: int) -> int:
    """Whole pages of rows in the bytes that the state pool leaves."""
    left = max(budget.rest_bytes - taken, 0)
    if not geometry.row_bytes:
        if taken > budget.rest_bytes:
            raise _no_room_for_slots(geometry, budget, slots, taken)
        return 0
    fitting = left // geometry.row_bytes // budget.page_size * budget.page_size
    if fitting < 1:
        raise _no_room_for_rows(geometry, budget, slots, taken)
    return fitting


def _draft_requests(geometry: Geometry, budget: Budget, slots: int) -> int:
    if not budget.draft_tokens or not geometry.slot_bytes:
        return 0
    fitting = slots // budget.slots_per_request
    asked = budget.max_running_requests
    return fitting if asked is None else min(asked, fitting)


def _no_room_for_slots(geometry: Geometry, budget: Budget, slots: int, taken: int) -> CapacityError:
    room = max(budget.rest_bytes // geometry.slot_bytes - 1, 0) if geometry.slot_bytes else 0
    return CapacityError(
        f"{slots} state slots and one for padding take {format_bytes(taken)} of "
        f"{format_bytes(budget.rest_bytes)}",
        hint=f"pin at most {room} slots (--max-mamba-cache-size), or give the pools more memory",
    )


def _no_room_for_rows(geometry: Geometry, budget: Budget, slots: int, taken: int) -> CapacityError:
    page = geometry.row_bytes * budget.page_size
    if not taken:
        return CapacityError(
            f"{format_bytes(budget.rest_bytes)} hold no KV page of {format_bytes(page)}",
            hint="give the pools more memory: --pool-memory or --mem-fraction-static",
        )
    room = max((budget.rest_bytes - page) // geometry.slot_bytes - 1, 0)
    drafts = f" with {budget.draft_tokens} draft states per request" if budget.draft_tokens else ""
    return CapacityError(
        f"{slots} state slots and one for padding{drafts} take {format_bytes(taken)} of "
        f"{format_bytes(budget.rest_bytes)}, which leaves no KV page of {format_bytes(page)}",
        hint=(
            f"pin at most {room} slots (--max-mamba-cache-size), or give the pools more memory"
            if room and not budget.draft_tokens
            else "give the pools more memory (--pool-memory, --mem-fraction-static)"
        ),
    )


def _at_least(name: str, value: int, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}, not a whole number")
    if value < low:
        raise ConfigError(f"{name} is {value}", hint=f"use {low} or more")
