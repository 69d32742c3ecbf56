"""The pool plan: settings, a model and measured memory brought together into both pools' sizes.

Pure: bytes go in, sizes with their provenance and the boot lines come out. Allocates nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.arena import rows_per_slot
from twinpool.memory.boot_log import boot_lines
from twinpool.memory.running_cap import RunningCap, SlotStrategy, running_cap, slots_per_request
from twinpool.memory.sizing import Budget, PoolSizes, size_pools
from twinpool.settings.memory import MemoryMode
from twinpool.settings.resolve import Machine, Resolved
from twinpool.settings.values import Source, Value
from twinpool.spec.geometry import Geometry, geometry_of
from twinpool.spec.model import ModelSpec
from twinpool.units import GIB, format_bytes

# Requests that may run at once on one memory where nothing was asked. Source: vLLM, `max_num_seqs`
# on GPUs of 70 GiB and more.
SHARED_RUNNING_REQUESTS = 1024
# How the boot line of one memory begins.
ARENA_LINE = "Elastic memory is allocated."


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArenaPlan:
    """One memory for rows and states.

    Attributes:
        num_frames: State slots that it holds if it holds nothing else, the sink left out.
        rows_per_slot: Rows that take the place of one.
    """

    num_frames: int
    rows_per_slot: int

    @property
    def num_rows(self) -> int:
        """Rows that it holds if it holds nothing else."""
        return self.num_frames * self.rows_per_slot


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """Both pools as they are to be built.

    Attributes:
        spec: The model, with the dtype that is served.
        geometry: Bytes of a row and a slot.
        sizes: Counts and bytes of both pools.
        cap: How many requests may run at once, and why.
        arena: The one memory that both kinds share, in place of `sizes`; None: two pools.
        values: Effective numbers by name, each with how it was got.
        log_lines: One line for each wish that could not be met.
        boot_lines: The lines of the reference engine.
    """

    spec: ModelSpec
    geometry: Geometry
    sizes: PoolSizes
    cap: RunningCap
    values: Mapping[str, Value[object]]
    log_lines: tuple[str, ...]
    boot_lines: tuple[str, ...]
    arena: ArenaPlan | None = None

    @property
    def num_rows(self) -> int:
        """Rows that there can be: of the KV pool, or of all memory."""
        return self.sizes.kv_tokens if self.arena is None else self.arena.num_rows

    @property
    def num_slots(self) -> int:
        """Slots that there can be: of the state pool, or in all memory."""
        return self.sizes.state_slots if self.arena is None else self.arena.num_frames


def pool_bytes(resolved: Resolved, machine: Machine, free_after_load_bytes: int) -> Value[int]:
    """Say how many bytes both pools may take together.

    Args:
        resolved: The settings.
        machine: What was measured before anything was loaded.
        free_after_load_bytes: Memory free once the weights are loaded.

    Raises:
        CapacityError: If the weights leave no room, or less than `--pool-memory`.

    Source: the reference engine's budget: what is free after loading, less the part of what was
    free before it that is not static.
    """
    asked = resolved.memory.pool_memory
    if asked is not None:
        if asked > free_after_load_bytes:
            raise CapacityError(
                f"--pool-memory asks for {format_bytes(asked)}, and the weights leave "
                f"{format_bytes(max(free_after_load_bytes, 0))}",
                hint="ask for less, or serve a smaller model",
            )
        return Value(asked, resolved.values["pool_memory"].source)
    static = resolved.memory.mem_fraction_static
    rest = free_after_load_bytes - math.ceil(machine.free_bytes * (1 - static))
    if rest < 1:
        used = machine.free_bytes - free_after_load_bytes
        least = math.ceil(1000 * used / machine.free_bytes) / 1000
        raise CapacityError(
            f"the weights take {format_bytes(used)} of {format_bytes(machine.free_bytes)} that "
            f"were free, which leaves nothing for the pools at --mem-fraction-static "
            f"{float(static):g}",
            hint=f"raise --mem-fraction-static above {least:g}"
            if least < 1
            else "serve a smaller model",
        )
    return Value(rest, Source.MEASURED, f"{float(static):g} of the memory free before loading")


def plan_pools(
    resolved: Resolved, spec: ModelSpec, rest: Value[int], *, num_draft_layers: int = 0
) -> PoolPlan:
    """Size both pools for one model.

    Args:
        resolved: The settings.
        spec: The model as its config has it.
        rest: Bytes for both pools together, from `pool_bytes`.
        num_draft_layers: Draft layers whose rows stand beside the model's.

    Raises:
        CapacityError: If a pool would be empty or no request could run.
        ConfigError: If a setting does not fit the model.
    """
    memory, scheduling = resolved.memory, resolved.scheduling
    spec = dataclasses.replace(spec, dtype=resolved.model.dtype or spec.dtype)
    geometry = geometry_of(
        spec,
        kv_dtype=memory.kv_cache_dtype,
        state_dtype=memory.mamba_ssm_dtype,
        tp=scheduling.tp,
        pp=scheduling.pp,
        num_draft_layers=num_draft_layers,
    )
    notes = _without_effect(resolved, spec)
    arena = _plan_arena(resolved, geometry, rest.value)
    sizes = size_pools(
        geometry,
        budget_of(resolved, rest.value),
        # No split that nobody asked for is a reason to refuse one memory.
        ratio=memory.mamba_full_memory_ratio if arena is None else Fraction(1),
        pinned_slots=memory.max_mamba_cache_size,
        prefix_cache=not memory.disable_radix_cache,
    )
    cap = running_cap(sizes, scheduling.max_running_requests, context_length=spec.context_length)
    if arena is not None:
        # One state for each running request, and room for what it writes: what fits decides.
        asked = scheduling.max_running_requests
        most = max(arena.num_frames - 1, 1)
        cap = dataclasses.replace(cap, value=min(asked or SHARED_RUNNING_REQUESTS, most))
    return PoolPlan(
        spec=spec,
        geometry=geometry,
        sizes=sizes,
        cap=cap,
        values=MappingProxyType(_effective(resolved, rest, sizes, cap, arena)),
        log_lines=notes + _clamps(resolved, sizes, arena),
        boot_lines=boot_lines(sizes, cap) if arena is None else (arena_line(arena, geometry),),
        arena=arena,
    )


def arena_line(arena: ArenaPlan, geometry: Geometry) -> str:
    """Return the boot line of one memory; nothing is split, so no pool has a size."""
    total = (arena.num_frames + 1) * arena.rows_per_slot * geometry.row_bytes
    return (
        f"{ARENA_LINE} size: {total / GIB:.2f}GB, rows: {arena.num_rows}, "
        f"row: {geometry.row_bytes} bytes, state slot: {arena.rows_per_slot} rows, "
        f"up to {arena.num_frames} state slots"
    )


def _plan_arena(resolved: Resolved, geometry: Geometry, rest_bytes: int) -> ArenaPlan | None:
    """Cut one memory into frames, where the settings ask for it and the model has both kinds."""
    if resolved.memory.memory_mode is not MemoryMode.ELASTIC:
        return None
    if not geometry.slot_bytes or not geometry.row_bytes:
        return None
    page_size = resolved.memory.page_size
    per_slot = rows_per_slot(geometry.slot_bytes, geometry.row_bytes, page_size)
    bound = resolved.memory.max_total_tokens
    rows = rest_bytes // geometry.row_bytes
    if bound is not None:
        rows = min(rows, bound)
    num_frames = rows // per_slot - 1
    if num_frames < 3:
        raise CapacityError(
            f"one memory of {rows} rows, {format_bytes(rows * geometry.row_bytes)}, holds "
            f"{max(num_frames, 0)} state slots of {format_bytes(per_slot * geometry.row_bytes)} "
            "beside the padding, and 3 are needed",
            hint="give the pools more memory"
            if rows != bound
            else "raise --max-total-tokens: states take rows of it, too; or use --memory static",
        )
    return ArenaPlan(num_frames=num_frames, rows_per_slot=per_slot)


def budget_of(resolved: Resolved, rest_bytes: int) -> Budget:
    """Say what both pools are cut from, and what bounds them.

    Args:
        resolved: The settings.
        rest_bytes: Bytes for both pools together.

    Raises:
        ConfigError: If the slot strategy cannot run with the other settings.
    """
    memory, scheduling = resolved.memory, resolved.scheduling
    return Budget(
        rest_bytes=rest_bytes,
        page_size=memory.page_size,
        slots_per_request=slots_per_request(
            memory.mamba_radix_cache_strategy,
            overlap=not scheduling.disable_overlap_schedule,
            prefix_cache=not memory.disable_radix_cache,
        ),
        draft_tokens=scheduling.speculative_num_draft_tokens,
        max_running_requests=scheduling.max_running_requests,
        max_total_tokens=memory.max_total_tokens,
    )


def _clamps(resolved: Resolved, sizes: PoolSizes, arena: ArenaPlan | None) -> tuple[str, ...]:
    """Say where the KV pool is smaller than its bound; the cap has its own boot line."""
    bound = resolved.memory.max_total_tokens
    if bound is None or sizes.kv_tokens == bound:
        return ()
    if arena is not None:
        if sizes.rest_bytes // sizes.geometry.row_bytes >= bound:
            return ()
        return (
            f"max_total_tokens has no effect: it is {bound}, and the one memory has "
            f"{arena.num_rows} rows",
        )
    return (
        f"max_total_tokens is {sizes.kv_tokens} instead of {bound}: the KV pool has no room for "
        "more",
    )


def _without_effect(resolved: Resolved, spec: ModelSpec) -> tuple[str, ...]:
    """Name explicit settings of the state pool that a model without one ignores."""
    if spec.linear_layers:
        return ()
    strategy = resolved.values["mamba_radix_cache_strategy"]
    if strategy.source.is_explicit and strategy.value is not SlotStrategy.DIRECT:
        raise ConfigError(
            f"--mamba-radix-cache-strategy {strategy.value} is for models with linear attention, "
            f"and {spec.model_type} has none",
            hint="leave the flag out",
        )
    names = ("max_mamba_cache_size", "mamba_full_memory_ratio", "mamba_ssm_dtype")
    return tuple(
        f"{name} has no effect: {spec.model_type} has no linear attention and so no state pool"
        for name in names
        if resolved.values[name].source.is_explicit
    )


def _effective(
    resolved: Resolved,
    rest: Value[int],
    sizes: PoolSizes,
    cap: RunningCap,
    arena: ArenaPlan | None,
) -> dict[str, Value[object]]:
    pinned = resolved.values["max_mamba_cache_size"]
    is_bound = sizes.kv_tokens < sizes.fitting_tokens
    asked = resolved.values["max_running_requests"]
    why_cap = {
        "asked": "as asked",
        "estimate": "nothing was asked; the reference engine's estimate",
        "kv": f"{sizes.kv_tokens} KV tokens, 2 per request",
        "state": f"{sizes.state_slots} state slots, {sizes.slots_per_request} per request",
    }[cap.binds]
    if arena is not None:
        return {
            "pool_bytes": rest,
            "slot_bytes": Value(
                sizes.geometry.slot_bytes, Source.DERIVED, "from the model's config"
            ),
            "row_bytes": Value(sizes.geometry.row_bytes, Source.DERIVED, "from the model's config"),
            "rows_per_slot": Value(arena.rows_per_slot, Source.DERIVED, "whole, aligned rows"),
            "arena_rows": Value(arena.num_rows, Source.DERIVED, "for rows and states alike"),
            "max_running_requests": asked
            if asked.value == cap.value
            else Value(cap.value, Source.DERIVED, "one state slot per running request"),
        }
    return {
        "pool_bytes": rest,
        "slot_bytes": Value(sizes.geometry.slot_bytes, Source.DERIVED, "from the model's config"),
        "row_bytes": Value(sizes.geometry.row_bytes, Source.DERIVED, "from the model's config"),
        "slots_per_request": Value(
            sizes.slots_per_request, Source.DERIVED, "mamba_radix_cache_strategy and overlap"
        ),
        "max_mamba_cache_size": pinned
        if pinned.value == sizes.state_slots
        else Value(sizes.state_slots, Source.DERIVED, _why_slots(resolved, sizes)),
        "max_total_tokens": resolved.values["max_total_tokens"]
        if is_bound
        else Value(sizes.kv_tokens, Source.DERIVED, "what the state pool leaves"),
        "max_running_requests": asked
        if cap.binds == "asked"
        else Value(cap.value, Source.DERIVED, why_cap),
    }


def _why_slots(resolved: Resolved, sizes: PoolSizes) -> str:
    if not sizes.geometry.slot_bytes:
        return "the model has no linear attention"
    if resolved.memory.disable_radix_cache and resolved.scheduling.max_running_requests:
        return "one per running request: nothing is kept for reuse"
    return "mamba_full_memory_ratio"
