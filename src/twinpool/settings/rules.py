"""Rules between settings: what excludes what, and what follows from what.

Each rule is one function over a draft; it raises, or replaces a value and says so. Knows no model
and no machine.

Source: the reference engine's checks on the same flags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinpool.errors import ConfigError
from twinpool.memory.running_cap import SlotStrategy
from twinpool.settings.memory import MemoryMode
from twinpool.settings.scheduling import WHOLE_PROMPTS
from twinpool.settings.values import Source, Value


class Draft:
    """Settings while they are being resolved.

    Args:
        values: Every setting by name; taken over and changed.
    """

    def __init__(self, values: dict[str, Value[Any]]) -> None:
        self.values = values
        self.log_lines: list[str] = []

    def __getitem__(self, name: str) -> Value[Any]:
        return self.values[name]

    def derive(self, name: str, value: object, why: str) -> None:
        """Replace a value and leave one log line.

        Args:
            name: The setting.
            value: Its new value.
            why: What it follows from.

        Changes:
            The setting's value and the log lines.
        """
        old = self.values[name].value
        self.values[name] = Value(value, Source.DERIVED, why)
        self.log_lines.append(f"{name} is {value} instead of {old}: {why}")

    def note(self, line: str) -> None:
        """Leave a log line that changes nothing."""
        self.log_lines.append(line)


def a_split_is_static(draft: Draft) -> None:
    """Make memory static where a person gives a split, or what only a split can hold.

    Elastic memory holds one state per running request, so it goes with `direct` alone.
    """
    mode = draft["memory_mode"]
    if mode.value is not MemoryMode.ELASTIC:
        return
    strategy = draft["mamba_radix_cache_strategy"]
    reasons = [
        f"--{name.replace('_', '-')} is given"
        for name in ("max_mamba_cache_size", "mamba_full_memory_ratio")
        if draft[name].value is not None and draft[name].source.is_explicit
    ]
    if strategy.source.is_explicit and strategy.value is not SlotStrategy.DIRECT:
        reasons.append(f"--mamba-radix-cache-strategy {strategy.value} reserves slots")
    if draft["speculative_num_draft_tokens"].value:
        reasons.append("draft states have a buffer of their own")
    if reasons and mode.source.is_explicit:
        raise ConfigError(
            f"--memory elastic has no split, and {reasons[0]}", hint="leave out one of them"
        )
    if reasons:
        # Nobody asked for elastic memory, so nothing is said of it.
        draft.values["memory_mode"] = Value(MemoryMode.STATIC, Source.DERIVED, reasons[0])
    elif strategy.value is not SlotStrategy.DIRECT:
        draft.values["mamba_radix_cache_strategy"] = Value(
            SlotStrategy.DIRECT, Source.DERIVED, "elastic memory holds one state per request"
        )


def refuse_replay_only(draft: Draft) -> None:
    """Refuse, where something is to be served, what only a replay can do."""
    mode = draft["memory_mode"].value
    if mode.is_shared:
        raise ConfigError(
            f"--memory {mode.value} is for replays: a server's pools are cut at startup",
            hint="use --memory static, or twinpool replay",
        )


def shared_memory_has_no_split(draft: Draft) -> None:
    """Say which explicit settings of a split have no effect on one memory; refuse drafts."""
    mode = draft["memory_mode"].value
    if not mode.is_shared:
        return
    if draft["speculative_num_draft_tokens"].value:
        raise ConfigError(
            f"--memory {mode.value} has no room for draft states",
            hint="use --memory static, or leave out --speculative-num-draft-tokens",
        )
    for name in ("max_mamba_cache_size", "mamba_full_memory_ratio", "max_total_tokens"):
        if draft[name].source.is_explicit:
            draft.note(f"{name} has no effect: --memory {mode.value} has no split")


def one_memory_size(draft: Draft) -> None:
    """Let the stronger source decide between two sizes for the same memory; refuse a tie."""
    pool, part = draft["pool_memory"], draft["mem_fraction_static"]
    if pool.value is None or not part.source.is_explicit:
        return
    if pool.source is part.source:
        raise ConfigError(
            "--pool-memory and --mem-fraction-static both size the pools",
            hint="give one of them",
        )
    if part.source is Source.FLAG:
        draft.derive("pool_memory", None, "--mem-fraction-static is given")
    else:
        draft.note("mem_fraction_static has no effect: --pool-memory is given")


def no_buffer_is_exact(draft: Draft) -> None:
    """Make `no_buffer` run without overlap and without pages, whose grid it cannot keep."""
    if draft["mamba_radix_cache_strategy"].value is not SlotStrategy.NO_BUFFER:
        return
    if draft["page_size"].value != 1:
        _yield_or_refuse(
            draft,
            weaker="page_size",
            value=1,
            to="mamba_radix_cache_strategy",
            why="no_buffer takes checkpoints at any token, which needs a page of one row",
        )
    if (
        draft["mamba_radix_cache_strategy"].value is SlotStrategy.NO_BUFFER
        and not draft["disable_overlap_schedule"].value
    ):
        draft.derive("disable_overlap_schedule", True, "no_buffer cannot overlap steps")


def pipeline_has_no_overlap(draft: Draft) -> None:
    """Let steps of a pipeline follow each other: its stages overlap among themselves instead."""
    if draft["pp"].value > 1 and not draft["disable_overlap_schedule"].value:
        draft.derive("disable_overlap_schedule", True, "pipeline stages do not overlap steps")


def lazy_needs_overlap(draft: Draft) -> None:
    """Refuse `extra_buffer_lazy` without overlap; one that only the model prefers gives way."""
    strategy = draft["mamba_radix_cache_strategy"]
    if strategy.value is not SlotStrategy.EXTRA_BUFFER_LAZY or draft["disable_radix_cache"].value:
        return
    if draft["pp"].value > 1:
        _yield_or_refuse(
            draft,
            weaker="mamba_radix_cache_strategy",
            value=SlotStrategy.DIRECT,
            to="pp",
            why="extra_buffer_lazy needs overlap, and pipeline stages do not overlap steps",
        )
    elif draft["disable_overlap_schedule"].value:
        _yield_or_refuse(
            draft,
            weaker="mamba_radix_cache_strategy",
            value=SlotStrategy.DIRECT,
            to="disable_overlap_schedule",
            why="extra_buffer_lazy needs overlap, and overlap is off",
        )


def interval_fits_page(draft: Draft) -> None:
    """Refuse a track interval that is no multiple of the page, or shorter than a draft."""
    interval, page_size = draft["mamba_track_interval"].value, draft["page_size"].value
    if interval % page_size:
        _refuse_or_derive(
            draft,
            "mamba_track_interval",
            max(interval // page_size, 1) * page_size,
            f"not a multiple of --page-size {page_size}",
        )
    drafts = draft["speculative_num_draft_tokens"].value
    if draft["mamba_track_interval"].value < drafts:
        raise ConfigError(
            f"--mamba-track-interval is {interval}, below the {drafts} draft tokens of a step",
            hint=f"use an interval of {drafts} or more",
        )


def chunk_fits_page(draft: Draft) -> None:
    """Refuse a chunk that is no multiple of the page."""
    chunk, page_size = draft["chunked_prefill_size"].value, draft["page_size"].value
    if chunk != WHOLE_PROMPTS and chunk % page_size:
        _refuse_or_derive(
            draft,
            "chunked_prefill_size",
            max(chunk // page_size, 1) * page_size,
            f"not a multiple of --page-size {page_size}",
        )


def tokens_fill_a_page(draft: Draft) -> None:
    """Make the bound on KV rows whole pages; refuse one below a page."""
    bound, page_size = draft["max_total_tokens"].value, draft["page_size"].value
    if bound is None or bound % page_size == 0:
        return
    if bound < page_size:
        raise ConfigError(
            f"--max-total-tokens is {bound}, less than one page of {page_size}",
            hint=f"use {page_size} or more",
        )
    draft.derive(
        "max_total_tokens", bound // page_size * page_size, f"whole pages of {page_size} rows"
    )


def pin_beats_ratio(draft: Draft) -> None:
    """Let pinned slots beat the ratio, unless only the model pins and a person gave the ratio."""
    pin, ratio = draft["max_mamba_cache_size"], draft["mamba_full_memory_ratio"]
    if pin.value is None or not ratio.source.is_explicit:
        return
    if pin.source.is_explicit:
        draft.note(
            "mamba_full_memory_ratio has no effect: max_mamba_cache_size pins the state slots"
        )
    else:
        draft.derive("max_mamba_cache_size", None, "--mamba-full-memory-ratio is given")


def cache_off_needs_nothing(draft: Draft) -> None:
    """Say which explicit settings have no effect while nothing is kept for reuse."""
    if not draft["disable_radix_cache"].value:
        return
    for name in (
        "mamba_radix_cache_strategy",
        "mamba_max_states_per_path",
        "radix_eviction_policy",
    ):
        if draft[name].source.is_explicit:
            draft.note(f"{name} has no effect: the prefix cache is off")


def _yield_or_refuse(draft: Draft, *, weaker: str, value: object, to: str, why: str) -> None:
    """Change the setting that nobody wrote down; refuse when both were."""
    if not draft[weaker].source.is_explicit:
        draft.derive(weaker, value, why)
    elif not draft[to].source.is_explicit:
        fallback = SlotStrategy.DIRECT if to == "mamba_radix_cache_strategy" else False
        draft.derive(to, fallback, why)
    else:
        flags = [f"--{name.replace('_', '-')}" for name in (weaker, to)]
        raise ConfigError(
            f"{flags[0]} {draft[weaker].value} does not go with {flags[1]}: {why}",
            hint=f"leave out {flags[0]} or {flags[1]}",
        )


def _refuse_or_derive(draft: Draft, name: str, value: int, why: str) -> None:
    """Refuse what a person wrote down; adjust what is only a default."""
    old = draft[name]
    if old.source.is_explicit:
        flag = "--" + name.replace("_", "-")
        raise ConfigError(f"{flag} is {old.value}, {why}", hint=f"use {value}, for example")
    draft.derive(name, value, f"{old.value} is {why}")


RULES: tuple[Callable[[Draft], None], ...] = (
    a_split_is_static,
    shared_memory_has_no_split,
    one_memory_size,
    no_buffer_is_exact,
    pipeline_has_no_overlap,
    lazy_needs_overlap,
    interval_fits_page,
    chunk_fits_page,
    tokens_fill_a_page,
    pin_beats_ratio,
    cache_off_needs_nothing,
)
