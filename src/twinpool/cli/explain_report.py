"""The text of `twinpool explain`: the pools, other splits, the workload and the load, for people.

Knows no arithmetic; every number comes from a plan and says how it was got.
"""

from __future__ import annotations

from fractions import Fraction

from twinpool.cli.output import columns
from twinpool.memory.recover import Interval
from twinpool.memory.sizing import format_ratio
from twinpool.memory.workload import ConcurrencyPlan, WorkloadPlan
from twinpool.settings.explain_records import ExplainPlan, SplitRow
from twinpool.settings.values import Value
from twinpool.telemetry.diagnosis import Diagnosis
from twinpool.telemetry.scrape import EngineReading
from twinpool.units import format_bytes

_BINDS = {
    "state": "the state pool binds",
    "kv": "the KV pool binds",
    "asked": "as asked: no pool binds",
    "estimate": "neither pool binds",
}
_SHORT = {
    "state": "state pool",
    "kv": "KV pool",
    "both": "both pools",
    "blocks": "pool of blocks",
    "cap": "cap as asked",
}
_HOLDS = {True: "yes", False: "no", None: "?"}


def explain_report(
    log: str | None,
    plan: ExplainPlan | None,
    reading: EngineReading | None,
    diagnosis: Diagnosis | None,
) -> str:
    """Write the report.

    Args:
        log: Name of the log; None without one.
        plan: What came of the log; None without one.
        reading: What the metrics say; None without any.
        diagnosis: What came of the metrics; None without any.

    Returns:
        Text without a newline at its end.
    """
    parts = [] if plan is None else _log_parts(log or "", plan)
    if reading is not None and diagnosis is not None:
        parts += [_verdict(reading, diagnosis), _signs(diagnosis)]
        parts += _list("to know more", diagnosis.unknown)
        parts += _list("what to change, by the metrics", diagnosis.advice)
    if plan is not None:
        parts += _list("notes", plan.notes)
    return "\n\n".join(parts)


def _log_parts(log: str, plan: ExplainPlan) -> list[str]:
    name = "standard input" if log == "-" else log
    rank = f", rank {plan.pools.rank}" if plan.pools.rank else ""
    parts = [f"{name}:{plan.request.log.boot.line}{rank}\n{_pools(plan)}"]
    if plan.rows:
        parts.append(_splits(plan))
    if plan.concurrency is not None:
        parts.append(_concurrency(plan, plan.concurrency))
    if plan.workload is not None:
        parts.append(_workload(plan, plan.workload))
    return parts + _list("what to change", plan.advice)


def _list(title: str, lines: tuple[str, ...]) -> list[str]:
    return [title + "\n" + "\n".join(f"  {line}" for line in lines)] if lines else []


def _how(value: Value[object]) -> str:
    return f"{value.source.value}: {value.why}" if value.why else value.source.value


def _pools(plan: ExplainPlan) -> str:
    recovered, sizes, values = plan.recovered, plan.current.sizes, plan.values
    rows: list[list[str]] = []
    if recovered.state_slots:
        rows += [
            ["state pool", f"{recovered.state_slots:,} slots", _how(values["state_slots"])],
            ["  one slot", f"{recovered.slot.middle:,} B", _how(values["state_bytes_per_slot"])],
        ]
    rows += [
        ["KV pool", f"{recovered.kv_tokens:,} tokens", _how(values["kv_tokens"])],
        ["  one token", f"{recovered.row.middle:,} B", _how(values["kv_bytes_per_token"])],
    ]
    held = sizes.state_bytes + sizes.kv_bytes
    rows.append(["both pools", format_bytes(held), "derived: counts by bytes, padding included"])
    drafts = recovered.draft_states
    if drafts.high:
        size = format_bytes(int(drafts.low + drafts.high) // 2)
        rows.append(["draft states", size, "measured: the state line; beside both pools"])
    if recovered.state_slots:
        worth = Fraction(recovered.slot.middle, max(recovered.row.middle, 1))
        rows += [
            ["one slot", f"{round(worth):,} KV tokens", "derived"],
            ["ratio", format_ratio(plan.current.ratio), "derived: state bytes to KV bytes"],
            ["slots per request", str(plan.reserve.slots_per_request), _per_request(plan)],
        ]
    cap = values["max_running_requests"]
    rows.append(["running at most", str(plan.cap), f"{_BINDS[plan.binding]} ({_how(cap)})"])
    asked = values.get("asked_requests")
    if asked is not None and asked.value != plan.cap:
        rows.append(["asked for", str(asked.value), _how(asked)])
    return columns(rows, right=(1,))


def _per_request(plan: ExplainPlan) -> str:
    drafts = plan.reserve.draft_tokens
    more = f", and {drafts} draft states of their own" if drafts else ""
    return _how(plan.values["slots_per_request"]) + more


def _splits(plan: ExplainPlan) -> str:
    rows = [["ratio", "slots", "KV tokens", "within", "running at most", "binds", ""]]
    rows += [_split_row(row, plan.cap) for row in plan.rows]
    return "the same bytes at other splits (derived)\n" + columns(rows, right=(0, 1, 2, 3, 4))


def _split_row(row: SplitRow, in_force: int) -> list[str]:
    ratio = "" if row.ratio is None else format_ratio(row.ratio)
    mark = {"log": "as it is", "asked": "as asked"}.get(row.name, "")
    if row.split is None:
        return [ratio, "-", "-", "", "-", "", row.refused]
    split = row.split
    cap = split.cap
    if row.name == "log" and cap is not None and cap.value != in_force:
        # The flags reserve other slots than the server did, or replicas share the requests out.
        mark += f" ({in_force} in force)"
    return [
        ratio,
        f"{split.sizes.state_slots:,}" + _around(split.slots, split.sizes.state_slots),
        f"{split.sizes.kv_tokens:,}",
        _around(split.tokens, split.sizes.kv_tokens).strip(),
        str(cap.value) if cap else "0",
        {"state": "state", "kv": "KV"}.get(cap.binds, "") if cap else "state",
        mark,
    ]


def _around(interval: Interval, middle: int) -> str:
    off = max(interval.high - middle, middle - interval.low)
    return f" ± {off:,}" if off else ""


def _concurrency(plan: ExplainPlan, found: ConcurrencyPlan) -> str:
    rows = []
    if plan.balanced is not None:
        rows.append(["balanced ratio", format_ratio(plan.balanced), "both pools run out together"])
    if found.sizes is None:
        rows.append(["at the best split", "0", "not even one such request fits"])
    else:
        slots = f"{found.sizes.state_slots:,} slots, " if found.sizes.state_slots else ""
        rows.append(
            [
                "at the best split",
                str(found.running),
                f"run at once, with {slots}{found.sizes.kv_tokens:,} KV tokens",
            ]
        )
    by_kv = plan.recovered.kv_tokens // found.average_context
    which = "the KV pool binds" if by_kv < plan.cap else f"{_BINDS[plan.binding]}"
    rows.append(
        ["as it is", str(min(by_kv, plan.cap)), f"KV holds {by_kv}, the cap is {plan.cap}: {which}"]
    )
    title = f"requests of {found.average_context:,} tokens (derived)\n"
    return title + columns(rows, right=(1,))


def _workload(plan: ExplainPlan, found: WorkloadPlan) -> str:
    workload, recovered = found.workload, plan.recovered
    reserved = plan.reserve.slots_per_request * workload.running
    idle = workload.idle_sessions * workload.checkpoints_per_session
    rows = [
        ["", "needed", "as it is", "at the smallest number of slots"],
        [
            "state slots",
            f"{found.state_slots:,}",
            f"{recovered.state_slots:,}",
            f"{found.state_slots:,} ({reserved:,} running, {idle:,} checkpoints of idle sessions, "
            f"{found.margin_slots:,} margin)",
        ],
        [
            "KV tokens",
            f"{found.kv_tokens_needed:,}",
            f"{recovered.kv_tokens:,}",
            f"{found.kv_tokens:,}",
        ],
        ["sessions that fit", f"{workload.sessions:,}", "", f"{found.max_sessions:,}"],
    ]
    if found.host_bytes:
        rest = workload.sessions - found.max_sessions
        size = format_bytes(found.host_bytes)
        rows.append(["host backup", "", "", f"{size} per rank for the other {rest:,}"])
    title = (
        f"{workload.sessions:,} sessions of {workload.session_context:,} tokens, "
        f"{workload.running:,} running (derived)\n"
    )
    return title + columns(rows, right=(1, 2))


def _verdict(reading: EngineReading, diagnosis: Diagnosis) -> str:
    replicas = f", {reading.replicas} replicas added up" if reading.replicas > 1 else ""
    short = f": {_SHORT[diagnosis.pool]}" if diagnosis.pool else ""
    rows = [
        [name.replace("_", " "), f"{value:,.0f}" if value % 1 == 0 else f"{value:.4g}", source]
        for name, value in reading.known().items()
        if (source := reading.sources.get(name))
    ]
    measured = "\n".join(["measured", columns(rows, right=(1,))])
    return f"{reading.engine}, live{replicas}: {diagnosis.verdict}{short}\n\n{measured}"


def _signs(diagnosis: Diagnosis) -> str:
    rows = [
        [_HOLDS[sign.holds], sign.name, sign.numbers, f"(rule: {sign.rule})"]
        for sign in diagnosis.signs
    ]
    return "signs (derived; the bounds of the rules are assumed)\n" + columns(rows)
