"""The explain plan: what a boot log comes to, and what its bytes would give at other splits.

Brings a log, flags, a model and a workload together. Pure: reads no file and prints nothing. What
the log says is measured, what follows from it derived, and what neither says assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from twinpool.errors import CapacityError
from twinpool.memory.boots import Boot, RankPools
from twinpool.memory.recover import (
    Interval,
    Recovered,
    Reserve,
    Split,
    budget_at,
    recover,
    split_again,
)
from twinpool.memory.sizing import balanced_ratio
from twinpool.memory.workload import (
    Workload,
    plan_concurrency,
    plan_workload,
)
from twinpool.settings.explain_advice import advise
from twinpool.settings.explain_records import ExplainPlan, ExplainRequest, SplitRow
from twinpool.settings.log_settings import LogSettings
from twinpool.settings.model_match import match_model
from twinpool.settings.values import Source, Value
from twinpool.spec.geometry import Geometry

RATIOS = tuple(Fraction(text) for text in ("0.1", "0.25", "0.5", "0.9", "2", "4"))


def plan_explain(request: ExplainRequest) -> ExplainPlan:
    """Work out what a log comes to.

    Args:
        request: What was asked.

    Raises:
        ConfigError: If a flag cannot be used, or the model does not fit the log.
        CapacityError: If the pools of the log cannot be what they say with what was given.
    """
    boot = request.log.boot
    pools = _scarcest(boot)
    settings = LogSettings(boot, pools, request.flags)
    page = settings.number("page_size")
    recovered = recover(pools, page.value if page else None)
    workload = _of_one_replica(request.workload, settings.replicas)
    notes = [
        *request.log.notes,
        *_notes(boot, pools, recovered),
        *_replica_notes(settings.replicas, workload),
    ]
    geometry = None
    if request.model is not None:
        name, spec = request.model
        geometry = match_model(spec, name, recovered, settings.variant())
        recovered = recovered.matched(geometry)
    reserve = _reserve(settings, pools, recovered)
    current = split_again(recovered, reserve, pinned_slots=recovered.state_slots or None)
    context = request.average_context
    # The nearest geometry stands for the model: all arithmetic beyond the table goes by it.
    nearest = recovered.geometries()[0]
    budget = budget_at(recovered, nearest, reserve)
    plan = ExplainPlan(
        request=request,
        pools=pools,
        recovered=recovered,
        geometry=geometry,
        reserve=reserve,
        values=_values(settings, pools, recovered, current),
        binding=_binding(pools, current),
        current=current,
        rows=_rows(settings, recovered, reserve, current),
        balanced=None if context is None else _balanced(nearest, reserve, context),
        concurrency=None if context is None else plan_concurrency(nearest, budget, context),
        workload=None if workload is None else plan_workload(nearest, budget, workload),
        notes=tuple(notes),
        replicas=settings.replicas,
    )
    return replace(plan, advice=tuple(advise(plan)))


def _scarcest(boot: Boot) -> RankPools:
    """Return the rank that gives out first, with the lines that only another rank prints."""
    rank = min(boot.ranks, key=lambda rank: (rank.state.slots if rank.state else 0, rank.kv_tokens))
    cap = rank.cap or next((other.cap for other in boot.ranks if other.cap), None)
    ready = rank.ready or next((other.ready for other in boot.ranks if other.ready), None)
    return replace(rank, cap=cap, ready=ready)


def _notes(boot: Boot, pools: RankPools, recovered: Recovered) -> Iterator[str]:
    if pools.state is None:
        yield (
            "no state line: a model without linear attention, or a log without its beginning; "
            "the KV pool is all there is"
        )
    if not recovered.page.is_exact:
        yield (
            f"the page size is not in the log: 1 to {recovered.page.high} rows are allowed for; "
            "give --page-size for a narrower answer"
        )
    bound = boot.settings.get("max_total_tokens")
    if bound is not None:
        yield (
            f"max_total_tokens {bound} bounds the KV pool: there may be more memory than both "
            "pools take"
        )
    if recovered.draft_states.high and "speculative_num_draft_tokens" not in boot.settings:
        yield (
            "draft states are printed without their number per request: give "
            "--speculative-num-draft-tokens, or they are left out of other splits"
        )


def _of_one_replica(workload: Workload | None, replicas: int) -> Workload | None:
    """Share sessions and running requests out among the replicas, rounded up."""
    if workload is None or replicas == 1:
        return workload
    sessions, running = (-(-count // replicas) for count in (workload.sessions, workload.running))
    return replace(workload, sessions=sessions, running=running)


def _replica_notes(replicas: int, workload: Workload | None) -> Iterator[str]:
    if replicas == 1:
        return
    yield (
        f"{replicas} data parallel replicas: every number is of one of them, and flags under what "
        "to change are those of the whole server"
    )
    if workload is not None:
        yield (
            f"the sessions are shared out: each replica has {workload.sessions:,} of them, "
            f"{workload.running:,} running"
        )


def _reserve(settings: LogSettings, pools: RankPools, recovered: Recovered) -> Reserve:
    asked = settings.asked()
    return Reserve(
        slots_per_request=settings.per_request().value,
        draft_tokens=settings.drafts(recovered).value,
        asked=asked.value if asked else None,
        context_length=pools.ready.context_length if pools.ready else None,
    )


def _binding(pools: RankPools, current: Split) -> str:
    if pools.cap is not None and pools.cap.pool:
        return pools.cap.pool
    return current.cap.binds if current.cap else "state"


def _values(
    settings: LogSettings, pools: RankPools, recovered: Recovered, current: Split
) -> dict[str, Value[object]]:
    line = "the KV line" if pools.resized is None else "the line after graph capture"
    values: dict[str, Value[object]] = {
        "state_slots": Value(recovered.state_slots, Source.MEASURED, "the state line"),
        "kv_tokens": Value(recovered.kv_tokens, Source.MEASURED, line),
        "state_bytes_per_slot": _recovered(recovered.slot, "sizes by slots and one for padding"),
        "kv_bytes_per_token": _recovered(recovered.row, "sizes by rows and a page for padding"),
        "slots_per_request": settings.per_request(),
        "draft_tokens": settings.drafts(recovered),
        "max_running_requests": _cap(pools, current),
    }
    asked, page = settings.asked(), settings.number("page_size")
    if asked is not None:
        values["asked_requests"] = asked
    if page is not None:
        values["page_size"] = page
    if not recovered.state_slots:
        del values["state_slots"], values["state_bytes_per_slot"], values["slots_per_request"]
    return values


def _recovered(interval: Interval, why: str) -> Value[object]:
    if interval.is_exact:
        return Value(interval.middle, Source.DERIVED, "from the model's config, and the log fits")
    error = float(100 * interval.error)
    return Value(interval.middle, Source.DERIVED, f"{why}, within {error:.2g} %")


def _cap(pools: RankPools, current: Split) -> Value[object]:
    if pools.ready is not None:
        return Value(pools.ready.max_running_requests, Source.MEASURED, "the scheduler's summary")
    if pools.cap is not None:
        return Value(pools.cap.value, Source.MEASURED, "the cap line")
    if current.cap is None:
        return Value(0, Source.DERIVED, current.refused)
    return Value(current.cap.value, Source.DERIVED, "no cap line: from the counts")


def _balanced(geometry: Geometry, reserve: Reserve, context: int) -> Fraction | None:
    if not geometry.slot_bytes:
        return None
    return balanced_ratio(
        geometry.token_equiv,
        context,
        slots_per_request=reserve.slots_per_request,
        draft_tokens=reserve.draft_tokens,
    )


def _rows(
    settings: LogSettings, recovered: Recovered, reserve: Reserve, current: Split
) -> tuple[SplitRow, ...]:
    """Split the same bytes in other ways, the fewest slots first."""
    if not recovered.state_slots:
        return ()
    rows = [SplitRow(name="log", ratio=current.ratio, split=current)]
    others = [_row("", recovered, reserve, ratio=ratio) for ratio in RATIOS]
    rows += [
        row
        for row in others
        if row.split is None or row.split.sizes.state_slots != recovered.state_slots
    ]
    ratio, slots = settings.flag("mamba_full_memory_ratio"), settings.flag("max_mamba_cache_size")
    if slots is not None:
        rows.append(_row("asked", recovered, reserve, pinned_slots=slots))
    elif ratio is not None:
        rows.append(_row("asked", recovered, reserve, ratio=ratio))
    return tuple(sorted(rows, key=lambda row: (row.ratio is None, row.ratio or 0)))


def _row(
    name: str,
    recovered: Recovered,
    reserve: Reserve,
    *,
    ratio: Fraction | None = None,
    pinned_slots: int | None = None,
) -> SplitRow:
    try:
        split = split_again(
            recovered, reserve, ratio=ratio or Fraction(1), pinned_slots=pinned_slots
        )
    except CapacityError as error:
        return SplitRow(name=name, ratio=ratio, split=None, refused=error.message)
    return SplitRow(name=name, ratio=ratio or split.ratio, split=split)
