"""Flags to paste: what a plan comes to on the command line of each engine.

Knows the spelling of flags and which of them an engine takes; decides nothing.

Source: SGLang 0.5.23 server arguments; vLLM 0.30 engine arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from twinpool.cli.paste_sglang import ROWS as SGLANG_ROWS
from twinpool.cli.paste_sglang import fitted
from twinpool.cli.paste_text import decimal_text, rows_flag
from twinpool.errors import ConfigError, TwinpoolError
from twinpool.memory.running_cap import SlotStrategy
from twinpool.settings.size_plan import SizePlan, recommended_slots, with_strategy
from twinpool.settings.values import Source
from twinpool.spec.families import SERVED
from twinpool.units import DType

ENGINES = ("sglang", "vllm", "twinpool")
_VLLM_ROWS = {
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "bfloat16",
    DType.FP8: "fp8_e4m3",
    DType.FP8_E5M2: "fp8_e5m2",
    DType.FP4: "nvfp4",
}
_DEFAULT_INTERVAL = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Paste:
    """Flags for one engine.

    Attributes:
        engine: Its name.
        flags: The flags, ready to be pasted; empty when the plan cannot run there.
        note: What to know of them; empty when there is nothing.
    """

    engine: str
    flags: str
    note: str = ""


def pastes(plan: SizePlan) -> tuple[Paste, ...]:
    """Write the flags of all engines, in the order of `ENGINES`.

    Args:
        plan: What `plan_size` found.
    """
    return (_sglang(plan), _vllm(plan), _twinpool(plan))


def _sglang(plan: SizePlan) -> Paste:
    """Plan with what the engine can do for this model: it has no `direct`, for one."""
    try:
        fit = fitted(plan)
        rows = rows_flag(fit.plan, SGLANG_ROWS)
    except TwinpoolError as error:
        return Paste(engine="sglang", flags="", note=f"does not run there: {error.message}")
    plan, notes = fit.plan, list(fit.notes)
    flags = _common(plan, rows, pipeline="--pp-size", has_overlap_flag=fit.has_overlap_flag)
    flags += _split(plan, sglang=True)
    interval = plan.resolved.scheduling.mamba_track_interval
    if fit.strategy is not None:
        flags += ["--mamba-radix-cache-strategy", fit.strategy.value]
        if interval != _DEFAULT_INTERVAL:
            flags += ["--mamba-track-interval", str(interval)]
    if plan.resolved.scheduling.speculative_num_draft_tokens:
        notes.append("drafting needs --speculative-algorithm, too, and its own flags")
    return Paste(engine="sglang", flags=" ".join(flags), note="; ".join(notes))


def _twinpool(plan: SizePlan) -> Paste:
    """A strategy that only a guide for another engine prefers gives way to `direct`."""
    geometry = plan.pools.geometry
    preferred = plan.resolved.values["mamba_radix_cache_strategy"].source is Source.MODEL_DEFAULT
    if preferred and recommended_slots(plan):
        plan = with_strategy(plan, SlotStrategy.DIRECT)
    flags = ["--pool-memory", str(plan.pools.values["pool_bytes"].value)]
    flags += _common(plan, rows_flag(plan, {dtype: dtype.value for dtype in DType}))
    flags += _split(plan, sglang=False)
    strategy = plan.resolved.memory.mamba_radix_cache_strategy
    # Said aloud where the model's guide prefers another one, too.
    if geometry.slot_bytes and (preferred or strategy is not SlotStrategy.DIRECT):
        flags += ["--mamba-radix-cache-strategy", strategy.value]
    return Paste(engine="twinpool", flags=" ".join(flags), note=_not_served(plan))


def _not_served(plan: SizePlan) -> str:
    """Say what of the plan the server cannot do yet."""
    scheduling = plan.resolved.scheduling
    gaps = []
    if plan.request.spec.model_type not in SERVED:
        gaps.append(f"the family {plan.request.spec.model_type}")
    if scheduling.tp * scheduling.pp > 1:
        gaps.append("more than one rank")
    if scheduling.speculative_num_draft_tokens:
        gaps.append("draft tokens")
    dtype = plan.resolved.memory.kv_cache_dtype
    if dtype is not None and dtype.bits < 16:
        gaps.append(f"{dtype.value} rows")
    return f"a plan only: `twinpool serve` does not do {', '.join(gaps)} yet" if gaps else ""


def _common(
    plan: SizePlan, rows: list[str], *, pipeline: str = "--pp", has_overlap_flag: bool = True
) -> list[str]:
    """Flags that SGLang and twinpool spell alike, where they are not the default."""
    memory, scheduling = plan.resolved.memory, plan.resolved.scheduling
    flags: list[str] = []
    if scheduling.tp > 1:
        flags += ["--tp", str(scheduling.tp)]
    if scheduling.pp > 1:
        flags += [pipeline, str(scheduling.pp)]
    flags += [*_dtype(plan), *rows]
    if memory.mamba_ssm_dtype is not None:
        flags += ["--mamba-ssm-dtype", memory.mamba_ssm_dtype.value]
    if memory.page_size > 1:
        flags += ["--page-size", str(memory.page_size)]
    if memory.disable_radix_cache:
        flags.append("--disable-radix-cache")
    if scheduling.disable_overlap_schedule and scheduling.pp == 1 and has_overlap_flag:
        flags.append("--disable-overlap-schedule")
    if scheduling.speculative_num_draft_tokens:
        flags += ["--speculative-num-draft-tokens", str(scheduling.speculative_num_draft_tokens)]
    if memory.max_total_tokens is not None:
        flags += ["--max-total-tokens", str(memory.max_total_tokens)]
    running = _running(plan)
    return [*flags, "--max-running-requests", str(running)] if running else flags


def _dtype(plan: SizePlan) -> list[str]:
    dtype = plan.resolved.model.dtype
    return [] if dtype is None else ["--dtype", dtype.value]


def _running(plan: SizePlan) -> int | None:
    if plan.workload is not None and plan.workload.max_sessions:
        running = plan.workload.workload.running
        return running if plan.workload.fits else min(running, plan.workload.max_sessions)
    scheduling = plan.resolved.scheduling
    if scheduling.max_running_requests is not None:
        return plan.pools.cap.value
    if plan.concurrency:
        return plan.concurrency.running or None
    # The draft states are as many as the running requests, so their number is part of the split.
    return plan.pools.cap.value if scheduling.speculative_num_draft_tokens else None


def _split(plan: SizePlan, *, sglang: bool) -> list[str]:
    """Pin the recommended slots, or repeat the split that the flags gave."""
    fraction = plan.values.get("mem_fraction_static")
    flags = []
    if sglang and fraction is not None and isinstance(fraction.value, Fraction):
        flags += ["--mem-fraction-static", decimal_text(fraction.value)]
    if not plan.pools.geometry.slot_bytes:
        return flags
    if not plan.pools.geometry.row_bytes:
        # SGLang keeps the KV share of the ratio free even where no layer writes rows.
        slots = plan.pools.sizes.state_slots
        return [*flags, "--max-mamba-cache-size", str(slots)] if sglang else flags
    pinned = recommended_slots(plan) or plan.resolved.memory.max_mamba_cache_size
    if pinned:
        return [*flags, "--max-mamba-cache-size", str(pinned)]
    ratio = decimal_text(plan.resolved.memory.mamba_full_memory_ratio)
    return [*flags, "--mamba-full-memory-ratio", ratio]


def _vllm(plan: SizePlan) -> Paste:
    """That engine has one pool of equal pages and so no split to set."""
    memory, scheduling = plan.resolved.memory, plan.resolved.scheduling
    flags: list[str] = []
    if scheduling.tp > 1:
        flags += ["--tensor-parallel-size", str(scheduling.tp)]
    if scheduling.pp > 1:
        flags += ["--pipeline-parallel-size", str(scheduling.pp)]
    flags += _dtype(plan)
    flags += ["--kv-cache-memory-bytes", str(plan.pools.values["pool_bytes"].value)]
    try:
        flags += rows_flag(plan, _VLLM_ROWS)
    except ConfigError as error:
        return Paste(engine="vllm", flags="", note=f"does not run there: {error.message}")
    if memory.mamba_ssm_dtype is not None:
        flags += ["--mamba-ssm-cache-dtype", memory.mamba_ssm_dtype.value]
    if memory.disable_radix_cache:
        flags.append("--no-enable-prefix-caching")
    else:
        flags.append("--enable-prefix-caching")
        if plan.pools.geometry.slot_bytes:
            flags += ["--mamba-cache-mode", "align"]
    running = _running(plan)
    if running:
        flags += ["--max-num-seqs", str(running)]
    return Paste(engine="vllm", flags=" ".join(flags), note="; ".join(_vllm_notes(plan)))


def _vllm_notes(plan: SizePlan) -> list[str]:
    """Say what of the plan has no flag there."""
    memory, scheduling = plan.resolved.memory, plan.resolved.scheduling
    notes = []
    if plan.pools.geometry.slot_bytes:
        notes.append(
            "states and KV share one pool of equal pages: no split to set, hits end on page borders"
        )
    left_out = []
    if memory.page_size > 1:
        left_out.append(f"a page of {memory.page_size}")
    if memory.max_total_tokens is not None:
        left_out.append(f"a bound of {memory.max_total_tokens} KV tokens")
    if left_out:
        notes.append(f"{' and '.join(left_out)} cannot be asked for there")
    if scheduling.speculative_num_draft_tokens:
        notes.append("drafting is set with --speculative-config")
    return notes
