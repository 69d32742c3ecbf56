"""Flags to paste: what a plan comes to on the command line of each engine.

Knows the spelling of flags; decides nothing.

Source: SGLang 0.5.23 server arguments; vLLM 0.30 engine arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from twinpool.errors import TwinpoolError
from twinpool.memory.running_cap import SlotStrategy
from twinpool.settings.size_plan import SizePlan, recommended_slots, with_strategy
from twinpool.settings.values import Source
from twinpool.spec.families import SERVED
from twinpool.units import DType

ENGINES = ("sglang", "vllm", "twinpool")


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
    """The engine has no `direct`: its cheapest strategy that can run is planned instead."""
    strategy = plan.resolved.memory.mamba_radix_cache_strategy
    note = ""
    if plan.pools.geometry.slot_bytes and strategy is SlotStrategy.DIRECT:
        overlap = not plan.resolved.scheduling.disable_overlap_schedule
        strategy = SlotStrategy.EXTRA_BUFFER_LAZY if overlap else SlotStrategy.EXTRA_BUFFER
        try:
            plan = with_strategy(plan, strategy)
        except TwinpoolError as error:
            return Paste(engine="sglang", flags="", note=f"does not run there: {error.message}")
        slots = plan.pools.sizes.slots_per_request
        note = f"planned with {strategy.value}, {slots} slots per request: there is no `direct`"
    flags = [*_common(plan, pipeline="--pp-size"), *_split(plan, sglang=True)]
    if plan.pools.geometry.slot_bytes and not plan.resolved.memory.disable_radix_cache:
        flags += ["--mamba-radix-cache-strategy", strategy.value]
    return Paste(engine="sglang", flags=" ".join(flags), note=note)


def _twinpool(plan: SizePlan) -> Paste:
    """A strategy that only a guide for another engine prefers gives way to `direct`."""
    geometry = plan.pools.geometry
    preferred = plan.resolved.values["mamba_radix_cache_strategy"].source is Source.MODEL_DEFAULT
    if preferred and recommended_slots(plan):
        plan = with_strategy(plan, SlotStrategy.DIRECT)
    flags = ["--pool-memory", str(plan.pools.values["pool_bytes"].value), *_common(plan)]
    flags += _split(plan, sglang=False)
    strategy = plan.resolved.memory.mamba_radix_cache_strategy
    if geometry.slot_bytes and strategy is not SlotStrategy.DIRECT:
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


def _common(plan: SizePlan, *, pipeline: str = "--pp") -> list[str]:
    """Flags that SGLang and twinpool spell alike, where they are not the default."""
    memory, scheduling = plan.resolved.memory, plan.resolved.scheduling
    flags: list[str] = []
    if scheduling.tp > 1:
        flags += ["--tp", str(scheduling.tp)]
    if scheduling.pp > 1:
        flags += [pipeline, str(scheduling.pp)]
    if memory.kv_cache_dtype is not None:
        flags += ["--kv-cache-dtype", memory.kv_cache_dtype.value]
    if memory.mamba_ssm_dtype is not None:
        flags += ["--mamba-ssm-dtype", memory.mamba_ssm_dtype.value]
    if memory.page_size > 1:
        flags += ["--page-size", str(memory.page_size)]
    if memory.disable_radix_cache:
        flags.append("--disable-radix-cache")
    if scheduling.disable_overlap_schedule and scheduling.pp == 1:
        flags.append("--disable-overlap-schedule")
    if scheduling.speculative_num_draft_tokens:
        flags += ["--speculative-num-draft-tokens", str(scheduling.speculative_num_draft_tokens)]
    if memory.max_total_tokens is not None:
        flags += ["--max-total-tokens", str(memory.max_total_tokens)]
    running = _running(plan)
    return [*flags, "--max-running-requests", str(running)] if running else flags


def _running(plan: SizePlan) -> int | None:
    if plan.workload is not None and plan.workload.max_sessions:
        running = plan.workload.workload.running
        return running if plan.workload.fits else min(running, plan.workload.max_sessions)
    asked = plan.resolved.scheduling.max_running_requests
    if asked is not None:
        return plan.pools.cap.value
    return plan.concurrency.running or None if plan.concurrency else None


def _split(plan: SizePlan, *, sglang: bool) -> list[str]:
    """Pin the recommended slots, or repeat the split that the flags gave."""
    if not plan.pools.geometry.slot_bytes:
        return []
    fraction = plan.values.get("mem_fraction_static")
    flags = []
    if sglang and fraction is not None and isinstance(fraction.value, Fraction):
        flags += ["--mem-fraction-static", f"{float(fraction.value):g}"]
    if not plan.pools.geometry.row_bytes:
        return flags
    slots = recommended_slots(plan) or plan.resolved.memory.max_mamba_cache_size
    if slots:
        return [*flags, "--max-mamba-cache-size", str(slots)]
    ratio = plan.resolved.memory.mamba_full_memory_ratio
    return [*flags, "--mamba-full-memory-ratio", f"{float(ratio):g}"]


def _vllm(plan: SizePlan) -> Paste:
    """That engine has one pool of equal pages and so no split to set."""
    memory, scheduling = plan.resolved.memory, plan.resolved.scheduling
    flags: list[str] = []
    if scheduling.tp > 1:
        flags += ["--tensor-parallel-size", str(scheduling.tp)]
    if scheduling.pp > 1:
        flags += ["--pipeline-parallel-size", str(scheduling.pp)]
    flags += ["--kv-cache-memory-bytes", str(plan.pools.values["pool_bytes"].value)]
    if memory.kv_cache_dtype is not None and memory.kv_cache_dtype.is_fp8:
        flags += ["--kv-cache-dtype", memory.kv_cache_dtype.value]
    if memory.mamba_ssm_dtype in (DType.FLOAT32, DType.FLOAT16):
        flags += ["--mamba-ssm-cache-dtype", memory.mamba_ssm_dtype.value]
    if not memory.disable_radix_cache:
        flags.append("--enable-prefix-caching")
        if plan.pools.geometry.slot_bytes:
            flags += ["--mamba-cache-mode", "align"]
    running = _running(plan)
    if running:
        flags += ["--max-num-seqs", str(running)]
    note = "states and KV share one pool of equal pages: no split to set, hits end on page borders"
    return Paste(
        engine="vllm",
        flags=" ".join(flags),
        note=note if plan.pools.geometry.slot_bytes else "",
    )
