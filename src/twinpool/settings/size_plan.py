"""The size plan: one model, its memory and its workload brought together, for `twinpool size`.

Pure: no file is read and no machine asked. The pools come from the same `plan_pools` that a server
starts with; what is added here is where the bytes come from and what a workload makes of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from twinpool.errors import ConfigError
from twinpool.memory.running_cap import SlotStrategy
from twinpool.memory.sizing import Budget, balanced_ratio
from twinpool.memory.workload import (
    ConcurrencyPlan,
    Workload,
    WorkloadPlan,
    plan_concurrency,
    plan_workload,
)
from twinpool.settings.budget import MemoryAsk, memory_notes, rest_bytes
from twinpool.settings.memory import MemoryMode
from twinpool.settings.pools import PoolPlan, budget_of, plan_pools
from twinpool.settings.resolve import Resolved, resolve, to_json
from twinpool.settings.values import Source, Value
from twinpool.spec.model import ModelSpec
from twinpool.units import DType

AUTO = "auto"
_AS_SPLIT: Mapping[str, Value[object]] = MappingProxyType(
    {"memory_mode": Value(MemoryMode.STATIC, Source.ASSUMED, "what is sized is a split")}
)
_OF_A_SPLIT = frozenset({"max_mamba_cache_size", "mamba_full_memory_ratio"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """What is to be sized.

    Attributes:
        spec: The model.
        memory: Where the bytes for both pools come from.
        flags: Settings that were given, by name; `mamba_radix_cache_strategy` may be `auto`.
        assumed: Settings that hold when neither a flag nor the model says otherwise, by name.
        draft_layers: Draft layers with rows of their own; None: those of the model when there
            are draft tokens.
        average_context: Tokens per running request, prompt and answer; None when not known.
        workload: Sessions that return; None when there are none.
        preset: Settings that go with an engine that is reproduced, by name.
        is_split: True to size two pools where nothing else is said of the memory; False to go by
            the settings alone.
    """

    spec: ModelSpec
    memory: MemoryAsk
    flags: Mapping[str, object] = field(default_factory=dict)
    assumed: Mapping[str, object] = field(default_factory=dict)
    draft_layers: int | None = None
    average_context: int | None = None
    workload: Workload | None = None
    preset: Mapping[str, Value[object]] = field(default_factory=dict)
    is_split: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePlan:
    """What the flags give, what would be balanced, and what the workload needs.

    Attributes:
        request: What was asked.
        resolved: The settings in force.
        pools: Both pools as the flags have them.
        budget: What they are cut from.
        ratio: State bytes to KV bytes in force; None without two pools.
        balanced: Ratio at which both pools run out together; None without an average context.
        concurrency: Most requests of the average context at once; None without one.
        workload: What the sessions need; None without sessions.
        values: Numbers in force by name, each with how it was got.
        notes: What was assumed or has no effect, one line each.
    """

    request: SizeRequest
    resolved: Resolved
    pools: PoolPlan
    budget: Budget
    ratio: Value[Fraction] | None
    balanced: Fraction | None
    concurrency: ConcurrencyPlan | None
    workload: WorkloadPlan | None
    values: Mapping[str, Value[object]]
    notes: tuple[str, ...]


def plan_size(request: SizeRequest) -> SizePlan:
    """Size both pools of a model and hold a workload against them.

    Args:
        request: What is to be sized.

    Raises:
        ConfigError: If a flag cannot be used, or does not fit the model.
        CapacityError: If a pool would be empty or no request could run.
    """
    spec, assumed = _with_dtype(request.spec)
    resolved = resolve(
        _known_strategy(request.flags),
        _preferences(spec),
        assumed=request.assumed,
        preset={**(_AS_SPLIT if request.is_split else {}), **request.preset},
    )
    spec = dataclasses.replace(spec, dtype=resolved.model.dtype or spec.dtype)
    rest, parts = rest_bytes(request.memory, resolved)
    drafts = _draft_layers(request, resolved)
    pools = plan_pools(resolved, spec, rest, num_draft_layers=drafts.value)
    budget = budget_of(resolved, rest.value)
    balanced, concurrency = _balance(request, pools, budget)
    has_both = bool(pools.geometry.slot_bytes and pools.geometry.row_bytes)
    planned = plan_workload(pools.geometry, budget, request.workload) if request.workload else None
    return SizePlan(
        request=request,
        resolved=resolved,
        pools=pools,
        budget=budget,
        ratio=_ratio_in_force(resolved, pools) if has_both else None,
        balanced=balanced,
        concurrency=concurrency,
        workload=planned,
        values={**_model_values(resolved, pools, assumed, drafts), **parts, **pools.values},
        notes=_notes(request, resolved, pools, assumed, drafts, planned),
    )


def with_strategy(plan: SizePlan, strategy: SlotStrategy) -> SizePlan:
    """Plan the same request for another slot strategy.

    Args:
        plan: A plan.
        strategy: How checkpoints are taken.

    Raises:
        ConfigError: If that strategy cannot run with the other flags.
        CapacityError: If a pool would be empty or no request could run.
    """
    flags = {**plan.request.flags, "mamba_radix_cache_strategy": strategy}
    return plan_size(dataclasses.replace(plan.request, flags=flags))


def recommended_slots(plan: SizePlan) -> int | None:
    """Return the slots to pin for the workload, or for requests of the average context.

    Where not all sessions fit, the slots are those of the sessions that do: a checkpoint whose KV
    is gone is of no use, and its bytes hold more KV.

    None when there is no workload, nothing of it fits, or there is no state pool.
    """
    found = plan.workload
    if found is not None:
        if found.fits:
            return found.state_slots
        if not found.max_sessions:
            return None
        running = min(found.workload.running, found.max_sessions)
        fitting = dataclasses.replace(found.workload, sessions=found.max_sessions, running=running)
        return fitting.slots(plan.budget.slots_per_request)
    if plan.concurrency is not None and plan.concurrency.sizes is not None:
        return plan.concurrency.sizes.state_slots or None
    return None


def _with_dtype(spec: ModelSpec) -> tuple[ModelSpec, bool]:
    """Take bfloat16 where the config does not say: nearly every checkpoint is stored so."""
    if spec.has_dtype:
        return spec, False
    return dataclasses.replace(spec, dtype=DType.BFLOAT16), True


def _preferences(spec: ModelSpec) -> Mapping[str, object]:
    return spec.preferences if spec.linear_layers else {}


def _known_strategy(flags: Mapping[str, object]) -> dict[str, object]:
    """Read `auto` as the reference engine does: buffered, or exact when steps do not overlap."""
    known = dict(flags)
    if known.get("mamba_radix_cache_strategy") == AUTO:
        is_exact = known.get("disable_overlap_schedule") and str(known.get("page_size", 1)) == "1"
        known["mamba_radix_cache_strategy"] = (
            SlotStrategy.NO_BUFFER if is_exact else SlotStrategy.EXTRA_BUFFER
        )
    return known


def _draft_layers(request: SizeRequest, resolved: Resolved) -> Value[int]:
    if request.draft_layers is not None:
        return Value(request.draft_layers, Source.FLAG)
    own = len(request.spec.draft_layers)
    if not resolved.scheduling.speculative_num_draft_tokens:
        return Value(0, Source.DEFAULT, "no draft tokens")
    return Value(own, Source.ASSUMED, "the model's own layers for further tokens draft")


def _balance(
    request: SizeRequest, pools: PoolPlan, budget: Budget
) -> tuple[Fraction | None, ConcurrencyPlan | None]:
    context = request.average_context
    if context is None:
        return None, None
    if not pools.geometry.row_bytes:
        raise ConfigError(
            "--average-context is given, and the model writes no KV rows",
            hint="leave it out: state slots alone decide how many requests run",
        )
    if not pools.geometry.slot_bytes:
        return None, plan_concurrency(pools.geometry, budget, context)
    ratio = balanced_ratio(
        pools.geometry.token_equiv,
        context,
        slots_per_request=budget.slots_per_request,
        draft_tokens=budget.draft_tokens,
    )
    return ratio, plan_concurrency(pools.geometry, budget, context)


def _ratio_in_force(resolved: Resolved, pools: PoolPlan) -> Value[Fraction]:
    """Return the ratio that was asked for, or with pinned slots the one that they come to."""
    asked = resolved.values["mamba_full_memory_ratio"]
    if resolved.memory.max_mamba_cache_size is None and not resolved.memory.disable_radix_cache:
        return Value(resolved.memory.mamba_full_memory_ratio, asked.source, asked.why)
    sizes = pools.sizes
    state = sizes.state_bytes + sizes.draft_bytes
    return Value(
        Fraction(state, sizes.rest_bytes - state), Source.DERIVED, "state bytes to what they leave"
    )


def _model_values(
    resolved: Resolved, pools: PoolPlan, is_assumed: bool, drafts: Value[int]
) -> dict[str, Value[object]]:
    geometry, weights = pools.geometry, pools.spec.dtype

    def chosen(name: str, dtype: DType, otherwise: Value[object]) -> Value[object]:
        """Keep where a dtype that was chosen comes from."""
        value = resolved.values[name]
        return otherwise if value.value is None else Value(dtype, value.source, value.why)

    config: Value[object] = Value(weights, Source.DERIVED, "from the model's config")
    assumed: Value[object] = Value(weights, Source.ASSUMED, "the config does not say")
    rows: Value[object] = Value(geometry.kv_dtype, Source.DERIVED, "the dtype of the weights")
    states: Value[object] = Value(
        geometry.state_dtype, Source.DERIVED, "the model's config, else float32"
    )
    return {
        "weights_dtype": chosen("dtype", weights, assumed if is_assumed else config),
        "kv_cache_dtype": chosen("kv_cache_dtype", geometry.kv_dtype, rows),
        "mamba_ssm_dtype": chosen("mamba_ssm_dtype", geometry.state_dtype, states),
        "conv_dtype": Value(geometry.conv_dtype, Source.DERIVED, "the dtype of the weights"),
        "draft_layers": drafts,
    }


def _notes(
    request: SizeRequest,
    resolved: Resolved,
    pools: PoolPlan,
    is_assumed: bool,
    drafts: Value[int],
    planned: WorkloadPlan | None,
) -> tuple[str, ...]:
    spec = request.spec
    notes = [*resolved.log_lines, *pools.log_lines]
    notes += memory_notes(request.memory, resolved, spec.architecture)
    if is_assumed:
        notes.append("the config names no dtype: bfloat16 weights are assumed")
    if not spec.linear_layers:
        notes.append(f"{spec.model_type} has no linear attention: its state takes 0 bytes")
    if not spec.full_layers:
        notes.append(f"{spec.model_type} has no full attention: it writes no KV rows")
    if drafts.value:
        notes.append(
            f"{pools.geometry.draft_row_bytes:,} B of each token are rows of {drafts.value} draft "
            f"layers ({drafts.source.value}); --draft-layers sets their number"
        )
    if planned is not None and pools.cap.value < planned.workload.running:
        notes.append(
            f"the split that the flags give caps running requests at {pools.cap.value}, below the "
            f"{planned.workload.running} that are to run at once"
        )
    if planned is not None and not planned.fits and planned.state_slots:
        notes.append(
            f"not all sessions fit: the flags pin the slots of the {planned.max_sessions:,} that do"
        )
    return (*notes, *_preferred(spec, resolved))


def _preferred(spec: ModelSpec, resolved: Resolved) -> Iterator[str]:
    """Name the model's defaults that are in force; those of a split have no say without one."""
    is_split = resolved.memory.memory_mode is MemoryMode.STATIC
    preferred = [
        f"--{name.replace('_', '-')} {to_json(resolved.values[name].value)}"
        for name in _preferences(spec)
        if resolved.values[name].source is Source.MODEL_DEFAULT
        and (is_split or name not in _OF_A_SPLIT)
    ]
    if preferred:
        why = f" ({spec.preference_note})" if spec.preference_note else ""
        yield f"model defaults in force: {', '.join(preferred)}{why}"
