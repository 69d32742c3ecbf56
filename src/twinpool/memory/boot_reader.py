"""Boot reader: what one line of a server's log says of its pools.

Reads the reference engine's line shapes, which are also ours, out of any text around them. Knows no
file, and not which lines belong together (`memory.boots` does).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from twinpool.units import GIB

# Escape sequences of terminals, as bytes or as a JSON log driver writes them.
_ESCAPES = re.compile(r"(?:\x1b|\\u001b)(?:\[[0-9;:?]{0,32}[ -/]?[@-~]|\][^\x07\x1b]{0,200}\x07)")
_RANK = re.compile(r"((?:(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)[0-9]{1,5} ?)+)\]")
# Seven digits before the point are far beyond any memory; the bound keeps numbers small.
_SIZE = r"([0-9]{1,7}(?:\.[0-9]{1,9})?) ?GB"
_COUNT = r"([0-9]{1,15})"
_STATE = re.compile(
    rf"Mamba Cache is allocated\. max_mamba_cache_size: {_COUNT}, "
    rf"conv_state size: {_SIZE}, ssm_state size: {_SIZE}"
    rf"(?: intermediate_ssm_state_cache size: {_SIZE})?"
    rf"(?: intermediate_conv_window_cache size: {_SIZE})?"
)
_KV = re.compile(
    # Any word may stand before the line, a log level for one; these are the pools' own labels.
    r"((?:Full|SWA|MiniMax [\w.-]{1,40} (?:index|main \w{1,40})) )?"
    r"KV Cache (is allocated|VA upper bound)\. "
    rf"(?:dtype: (?:torch\.)?(\w{{1,32}}), )?#tokens: {_COUNT}, "
    rf"(?:K size: {_SIZE}, V size: {_SIZE}|KV size: {_SIZE})"
)
_RESIZED = re.compile(
    r"Post-capture KV sizing: (draft )?KV cache allocated\. "
    rf"dtype: (?:torch\.)?(\w{{1,32}}), #tokens: {_COUNT}, KV size: {_SIZE}"
)
_CAPPED = re.compile(
    rf"max_running_requests is capped to {_COUNT} by the "
    rf"(?:(?P<state>mamba state) cache \(max_mamba_cache_size={_COUNT}, {_COUNT} state slots"
    rf"|KV cache \({_COUNT} tokens)"
)
_REDUCED = re.compile(
    rf"max_running_requests was reduced from the requested {_COUNT} to {_COUNT} \(per dp worker\)"
)
_RECAPPED = re.compile(rf"Post-capture KV sizing: max_running_requests {_COUNT} -> {_COUNT}")
_READY = re.compile(
    rf"max_total_num_tokens={_COUNT}, .{{0,200}}?max_running_requests={_COUNT}, "
    rf"(?:.{{0,80}}?context_len={_COUNT})?"
)
_REFUSED = re.compile(
    r"state cache is too small to serve any requests\. "
    r"max_mamba_cache_size=(-?[0-9]{1,15}), mamba_ratio=([0-9]{1,6})"
)
_ARGS = re.compile(r"server_args=(?:ServerArgs\(|\{)")
_SETTINGS = (
    "model_path",
    "tp_size",
    "pp_size",
    "dp_size",
    "enable_dp_attention",
    "page_size",
    "context_length",
    "mem_fraction_static",
    "max_running_requests",
    "max_total_tokens",
    "max_mamba_cache_size",
    "mamba_full_memory_ratio",
    "mamba_radix_cache_strategy",
    "mamba_ssm_dtype",
    "kv_cache_dtype",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "speculative_algorithm",
    "speculative_num_draft_tokens",
)
_SETTING = re.compile(
    rf"(?<![A-Za-z0-9_])['\"]?({'|'.join(_SETTINGS)})['\"]?(?:=|: )"
    r"(?:'([^'\n]{0,400})'|\"([^\"\n]{0,400})\"|([^\s,)}\]'\"]{1,100}))"
)


@dataclass(frozen=True, slots=True)
class PrintedSize:
    """A size as a log prints it: GiB, rounded to its decimals.

    Attributes:
        gib: The number as printed.
    """

    gib: Decimal

    @property
    def low_bytes(self) -> Fraction:
        """The least that would be printed so."""
        return max(Fraction(0), (Fraction(self.gib) - self._half_step) * GIB)

    @property
    def high_bytes(self) -> Fraction:
        """The most that would be printed so."""
        return (Fraction(self.gib) + self._half_step) * GIB

    @property
    def _half_step(self) -> Fraction:
        exponent = self.gib.as_tuple().exponent
        assert isinstance(exponent, int)
        return Fraction(1, 2 * 10**-exponent)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLine:
    """The line of a state pool.

    Attributes:
        slots: Slots without the padding one.
        conv: Conv states, padding slot included.
        recurrent: Recurrent states, padding slot included.
        draft_recurrent: Recurrent draft states, with speculation.
        draft_conv: Conv windows of drafts, with speculation.
    """

    slots: int
    conv: PrintedSize
    recurrent: PrintedSize
    draft_recurrent: PrintedSize | None = None
    draft_conv: PrintedSize | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLine:
    """The line of a KV pool.

    Attributes:
        label: What stands before `KV Cache`, such as `SWA`; mostly empty.
        dtype: Name of the rows' dtype, without `torch.`; empty in old logs.
        tokens: Rows without the padding page.
        sizes: Keys and values, or one size for both; padding page included.
        is_upper_bound: True when only addresses are reserved and the pool is cut down later.
    """

    label: str
    dtype: str
    tokens: int
    sizes: tuple[PrintedSize, ...]
    is_upper_bound: bool = False

    @property
    def is_main(self) -> bool:
        """True for the pool of the full-attention layers, false for side pools with a label."""
        return self.label in ("", "Full") or "main" in self.label.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedLine:
    """The KV pool after graph capture, which is what serves.

    Attributes:
        tokens: Rows without the padding page.
        size: What stands behind them.
        is_draft: True for the pool of a draft model.
    """

    tokens: int
    size: PrintedSize
    is_draft: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CapLine:
    """A cap on running requests that a pool decided.

    Attributes:
        value: The cap.
        pool: `state` or `kv`; empty when the line does not say.
        slots: State slots that it was computed from.
        slots_per_request: Slots that a running request reserves.
        asked: What was asked for, where the line says so.
    """

    value: int
    pool: str
    slots: int | None = None
    slots_per_request: int | None = None
    asked: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyLine:
    """The summary of a scheduler that is ready.

    Attributes:
        tokens: Rows of its KV pool.
        max_running_requests: The cap in force.
        context_length: Longest sequence; None when the line does not say.
    """

    tokens: int
    max_running_requests: int
    context_length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsLine:
    """The arguments of a server, those that matter for its pools.

    Attributes:
        values: Setting name to its text; what is `None` there is left out.
    """

    values: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLine:
    """A server that did not start, for want of state slots.

    Attributes:
        slots: Slots that the state share holds.
        slots_per_request: Slots that one request reserves.
    """

    slots: int
    slots_per_request: int


Finding = StateLine | KvLine | ResizedLine | CapLine | ReadyLine | SettingsLine | RefusedLine
_Read = Callable[[re.Match[str]], Finding]


def read_line(line: str) -> Iterator[tuple[str, Finding]]:
    """Find what a line of a log says of pools.

    Args:
        line: One line, whatever stands around: colours, timestamps, prefixes of containers.

    Yields:
        The rank as printed, such as `DP0 TP1` (empty without one), and what was found, in order.
    """
    if not any(word in line for word in ("Cache", "KV", "max_running", "server_args=", "state")):
        return
    text = _ESCAPES.sub("", line)
    if _ARGS.search(text):
        yield "", SettingsLine(values=_settings(text))
        return
    found = [pair for pattern, read in _READERS for pair in _matches(pattern, read, text)]
    for start, finding in sorted(found, key=lambda pair: pair[0]):
        yield _rank(text, start), finding


def _matches(pattern: re.Pattern[str], read: _Read, text: str) -> Iterator[tuple[int, Finding]]:
    for match in pattern.finditer(text):
        yield match.start(), read(match)


def _rank(text: str, end: int) -> str:
    """Return the last rank before a finding: a line may hold several, after a progress bar."""
    ranks = _RANK.findall(text, 0, end)
    return str(ranks[-1]).strip() if ranks else ""


def _settings(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, single, double, bare in _SETTING.findall(text):
        value = single or double or bare
        if value not in ("", "None", "null"):
            values.setdefault(name, value)
    return values


def _size(text: str) -> PrintedSize:
    return PrintedSize(Decimal(text))


def _read_state(match: re.Match[str]) -> Finding:
    slots, conv, recurrent, draft_recurrent, draft_conv = match.groups()
    return StateLine(
        slots=int(slots),
        conv=_size(conv),
        recurrent=_size(recurrent),
        draft_recurrent=_size(draft_recurrent) if draft_recurrent else None,
        draft_conv=_size(draft_conv) if draft_conv else None,
    )


def _read_kv(match: re.Match[str]) -> Finding:
    label, form, dtype, tokens, keys, values, both = match.groups()
    return KvLine(
        label=(label or "").strip(),
        dtype=dtype or "",
        tokens=int(tokens),
        sizes=(_size(both),) if both else (_size(keys), _size(values)),
        is_upper_bound=form != "is allocated",
    )


def _read_resized(match: re.Match[str]) -> Finding:
    draft, _, tokens, size = match.groups()
    return ResizedLine(tokens=int(tokens), size=_size(size), is_draft=bool(draft))


def _read_capped(match: re.Match[str]) -> Finding:
    value, state, slots, per_request, _ = match.groups()
    if not state:
        return CapLine(value=int(value), pool="kv")
    return CapLine(
        value=int(value), pool="state", slots=int(slots), slots_per_request=int(per_request)
    )


def _read_reduced(match: re.Match[str]) -> Finding:
    return CapLine(value=int(match[2]), pool="kv", asked=int(match[1]))


def _read_recapped(match: re.Match[str]) -> Finding:
    return CapLine(value=int(match[2]), pool="")


def _read_ready(match: re.Match[str]) -> Finding:
    tokens, cap, context = match.groups()
    return ReadyLine(
        tokens=int(tokens),
        max_running_requests=int(cap),
        context_length=int(context) if context else None,
    )


def _read_refused(match: re.Match[str]) -> Finding:
    return RefusedLine(slots=int(match[1]), slots_per_request=int(match[2]))


_READERS: tuple[tuple[re.Pattern[str], _Read], ...] = (
    (_STATE, _read_state),
    (_KV, _read_kv),
    (_RESIZED, _read_resized),
    (_CAPPED, _read_capped),
    (_REDUCED, _read_reduced),
    (_RECAPPED, _read_recapped),
    (_READY, _read_ready),
    (_REFUSED, _read_refused),
)
