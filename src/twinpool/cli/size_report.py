"""The text of `twinpool size`: the split, the boot log, the workload and the flags, for people.

Knows no arithmetic; every number comes from a plan and says how it was got.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from twinpool.cli.model_argument import NamedModel
from twinpool.cli.output import columns
from twinpool.cli.paste import Paste
from twinpool.cli.paste_text import decimal_text
from twinpool.memory.running_cap import SlotStrategy, slots_per_request
from twinpool.memory.sizing import balanced_ratio, format_ratio
from twinpool.memory.workload import ConcurrencyPlan, WorkloadPlan
from twinpool.settings.size_plan import SizePlan
from twinpool.settings.values import Value
from twinpool.spec.layer import LayerSpec, full_of, linear_of
from twinpool.units import format_bytes

_CONTEXTS = (2048, 4096, 8192, 32768, 65536, 131072)
_MIXERS = {
    "GqaSpec": "grouped-query attention",
    "MlaSpec": "latent attention",
    "GatedDeltaSpec": "gated delta",
    "KimiDeltaSpec": "Kimi delta",
    "Mamba2Spec": "Mamba2",
    "Mamba1Spec": "Mamba-1",
    "LightningSpec": "lightning attention",
    "ShortConvSpec": "short conv",
}


def size_report(model: NamedModel, plan: SizePlan, flags: tuple[Paste, ...]) -> str:
    """Write the report.

    Args:
        model: What was sized.
        plan: What came of it.
        flags: Flags to paste, by engine.

    Returns:
        Text without a newline at its end.
    """
    parts = [_head(model, plan), _split(plan), _boot_log(plan)]
    if plan.concurrency is not None:
        parts.append(_concurrency(plan, plan.concurrency))
    elif plan.ratio is not None and plan.workload is None:
        parts.append(_balanced_table(plan))
    if plan.workload is not None:
        parts.append(_workload(plan, plan.workload))
    parts.append(_flags(flags))
    notes = [*plan.notes, *(f"{paste.engine}: {paste.note}" for paste in flags if paste.note)]
    if notes:
        parts.append("notes\n" + "\n".join(f"  {note}" for note in notes))
    return "\n\n".join(parts)


def _head(model: NamedModel, plan: SizePlan) -> str:
    geometry = plan.pools.geometry
    ranks = f"tp {geometry.tp}" + (f", pp {geometry.pp}" if geometry.pp > 1 else "")
    dtypes = [f"{geometry.kv_dtype.value} rows"] if geometry.row_bytes else []
    if geometry.slot_bytes:
        dtypes.append(f"{geometry.state_dtype.value} states")
    return f"{model.name}: {_layers(plan.request.spec.layers)}\n{ranks}, {', '.join(dtypes)}"


def _layers(layers: tuple[LayerSpec, ...]) -> str:
    """Count the mixers by kind; a layer with two counts twice."""
    mixers = [mixer for layer in layers for mixer in (linear_of(layer), full_of(layer)) if mixer]
    counts = Counter(type(mixer).__name__ for mixer in mixers)
    named = [f"{count} {_MIXERS[name]}" for name, count in counts.items()]
    return f"{len(layers)} layers, {' + '.join(named)}"


def _split(plan: SizePlan) -> str:
    pools, sizes, geometry = plan.pools, plan.pools.sizes, plan.pools.geometry
    rest = pools.values["pool_bytes"]
    rows = [["for both pools", f"{rest.value:,} B", _how(rest, format_bytes(sizes.rest_bytes))]]
    rows += _memory_rows(plan)
    if geometry.slot_bytes:
        rows.append(["state pool", f"{sizes.state_slots:,} slots", _slot_text(plan)])
    if geometry.row_bytes:
        per_token = f"{geometry.row_bytes:,} B per token"
        rows.append(
            [
                "KV pool",
                f"{sizes.kv_tokens:,} tokens",
                f"{format_bytes(sizes.kv_bytes)}, {per_token}",
            ]
        )
    if sizes.draft_bytes:
        rows.append(["draft states", "", format_bytes(sizes.draft_bytes)])
    if geometry.slot_bytes and geometry.row_bytes:
        rows.append(["one slot", f"{round(geometry.token_equiv):,} KV tokens"])
        per_request = pools.values["slots_per_request"]
        strategy = plan.resolved.values["mamba_radix_cache_strategy"]
        rows.append(
            ["slots per request", str(per_request.value), _how(strategy, str(strategy.value))]
        )
    rows.append(["running at most", str(pools.cap.value), _why_cap(plan)])
    rows += _elsewhere(plan)
    if plan.ratio is not None:
        shown = f"{float(plan.ratio.value):.4g}"
        rows.append(["ratio", shown, _how(plan.ratio, "")])
    return "split\n" + columns(rows, right=(1,))


def _elsewhere(plan: SizePlan) -> list[list[str]]:
    """Say what the same slots run in SGLang, whose own strategy reserves several per request."""
    strategy = plan.resolved.memory.mamba_radix_cache_strategy
    is_cached = not plan.resolved.memory.disable_radix_cache
    if strategy is not SlotStrategy.DIRECT or not is_cached or not plan.ratio:
        return []
    overlap = not plan.resolved.scheduling.disable_overlap_schedule
    # The strategy that the flags to paste are planned with.
    there = SlotStrategy.EXTRA_BUFFER_LAZY if overlap else SlotStrategy.EXTRA_BUFFER
    reserved = slots_per_request(there, overlap=overlap)
    running = min(plan.pools.cap.value, plan.pools.sizes.state_slots // reserved)
    return [["  in SGLang", str(running), f"{there.value} reserves {reserved} slots per request"]]


def _memory_rows(plan: SizePlan) -> list[list[str]]:
    """Show what the bytes were worked out from; nothing where they were given."""
    values = plan.values
    if "weights_bytes" not in values:
        return []
    static, weights = values["mem_fraction_static"], values["weights_bytes"]
    assert isinstance(static.value, Fraction)
    total, per_rank = (
        format_bytes(int(str(values[name].value)))
        for name in ("gpu_memory_bytes", "weights_bytes_per_rank")
    )
    return [
        ["  static part", decimal_text(static.value), _how(static, f"of {total}")],
        ["  less weights", per_rank, _how(weights, "per rank")],
    ]


def _slot_text(plan: SizePlan) -> str:
    geometry = plan.pools.geometry
    parts = f"conv {geometry.conv_bytes:,} + recurrent {geometry.recurrent_bytes:,}"
    size = format_bytes(plan.pools.sizes.state_bytes)
    return f"{size}, {geometry.slot_bytes:,} B per slot ({parts})"


def _how(value: Value[object], text: str) -> str:
    """Join a text with where its number comes from."""
    how = f"{value.source.value}" + (f": {value.why}" if value.why else "")
    return f"{text} ({how})" if text else how


def _why_cap(plan: SizePlan) -> str:
    value = plan.pools.values["max_running_requests"]
    binds = {
        "state": "the state pool binds",
        "kv": "the KV pool binds",
        "asked": "as asked",
        "estimate": "neither pool binds",
    }[plan.pools.cap.binds]
    return f"{binds} ({value.why})" if value.why else binds


def _boot_log(plan: SizePlan) -> str:
    return "boot log\n" + "\n".join(f"  {line.rstrip()}" for line in plan.pools.boot_lines)


def _concurrency(plan: SizePlan, found: ConcurrencyPlan) -> str:
    lines = [f"requests of {found.average_context:,} tokens"]
    rows = []
    if plan.balanced is not None:
        rows.append(["balanced ratio", format_ratio(plan.balanced), "both pools run out together"])
    if found.sizes is None:
        rows.append(["running at most", "0", "not even one such request fits"])
    else:
        pools = f"{found.sizes.kv_tokens:,} KV tokens"
        if found.sizes.state_slots:
            pools = f"{found.sizes.state_slots:,} slots, {pools}"
        rows.append(["running at most", str(found.running), f"with {pools}"])
    sizes = plan.pools.sizes
    now = sizes.kv_tokens // found.average_context
    rows.append(["in the split above", str(min(now, plan.pools.cap.value)), _limits(plan, now)])
    return "\n".join([*lines, columns(rows, right=(1,))])


def _limits(plan: SizePlan, by_kv: int) -> str:
    by_state = plan.pools.sizes.state_slots // plan.pools.sizes.slots_per_request
    if not plan.pools.geometry.slot_bytes:
        return f"KV holds {by_kv}"
    return f"KV holds {by_kv}, states {by_state}"


def _balanced_table(plan: SizePlan) -> str:
    sizes = plan.pools.sizes
    cells = [
        [
            f"{context:,}",
            format_ratio(
                balanced_ratio(
                    sizes.geometry.token_equiv,
                    context,
                    slots_per_request=sizes.slots_per_request,
                    draft_tokens=sizes.draft_tokens,
                )
            ),
        ]
        for context in _CONTEXTS
    ]
    rows = [["average context", *(cell[0] for cell in cells)]]
    rows.append(["balanced ratio", *(cell[1] for cell in cells)])
    return "balanced ratio, at which both pools run out together\n" + columns(
        rows, right=range(1, len(cells) + 1)
    )


def _workload(plan: SizePlan, found: WorkloadPlan) -> str:
    workload = found.workload
    geometry = plan.pools.geometry
    title = (
        f"{workload.sessions:,} sessions of {workload.session_context:,} tokens, "
        f"{workload.running:,} running"
    )
    reserved = plan.budget.slots_per_request * workload.running
    idle = workload.idle_sessions * workload.checkpoints_per_session
    rows = []
    if geometry.slot_bytes:
        uses = (
            f"{reserved:,} for running requests, {idle:,} checkpoints of idle sessions, "
            f"{found.margin_slots:,} margin"
        )
        rows.append(["slots needed", f"{found.state_slots:,}", uses])
    if geometry.row_bytes:
        needed = f"{found.kv_tokens_needed:,} needed"
        rows.append(["KV tokens left", f"{found.kv_tokens:,}", needed])
    spare = abs(found.spare_tokens)
    size = format_bytes(spare * geometry.row_bytes)
    if found.sizes is None:
        need = format_bytes((found.state_slots + 1) * geometry.slot_bytes)
        rows.append(["fits", "no", f"the slots alone take {need}"])
    elif found.fits:
        rows.append(["fits", "yes", f"{spare:,} tokens to spare ({size})"])
    else:
        rows.append(["fits", "no", f"{spare:,} tokens are missing ({size})"])
    rows.append(["sessions that fit", f"{found.max_sessions:,}", "at the best split"])
    if found.host_bytes:
        outside = workload.sessions - found.max_sessions
        rows.append(
            ["host backup", format_bytes(found.host_bytes), f"per rank, for {outside:,} sessions"]
        )
    return title + "\n" + columns(rows, right=(1,))


def _flags(flags: tuple[Paste, ...]) -> str:
    rows = [[paste.engine, paste.flags or "-"] for paste in flags]
    return "flags to paste\n" + columns(rows)
