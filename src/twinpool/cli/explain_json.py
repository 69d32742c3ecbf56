"""The stable JSON of `twinpool explain`; knows no layout for people.

Keys that both verbs have are named as in `twinpool size`. Without a log, or without metrics, what
would come of it is null.
"""

from __future__ import annotations

from typing import Any

from twinpool.cli.workload_json import concurrency_document, workload_document
from twinpool.memory.recover import Interval
from twinpool.settings.explain_records import ExplainPlan, SplitRow
from twinpool.settings.resolve import to_json
from twinpool.telemetry.diagnosis import Diagnosis, hit_rate_of
from twinpool.telemetry.scrape import EngineReading

_LOG_KEYS = (
    "boot",
    "state_slots",
    "kv_tokens",
    "state_bytes_per_slot",
    "conv_bytes_per_slot",
    "ssm_bytes_per_slot",
    "kv_bytes_per_token",
    "bounds",
    "token_equiv",
    "slots_per_request",
    "max_running_requests",
    "binding",
    "ratio",
    "page_size",
    "draft_tokens",
    "balanced_ratio",
    "splits",
    "concurrency",
    "workload",
    "provenance",
)


def explain_document(
    log: str | None,
    plan: ExplainPlan | None,
    reading: EngineReading | None,
    diagnosis: Diagnosis | None,
) -> dict[str, Any]:
    """Build the document; counts and bytes are integers, ratios floats, unknown values null.

    Args:
        log: Name of the log; None without one.
        plan: What came of the log; None without one.
        reading: What the metrics say; None without any.
        diagnosis: What came of the metrics; None without any.
    """
    from_log = dict.fromkeys(_LOG_KEYS) if plan is None else _log(plan)
    return {
        "log": log,
        **from_log,
        "notes": [] if plan is None else list(plan.notes),
        "advice": [] if plan is None else list(plan.advice),
        "metrics": None if reading is None or diagnosis is None else _metrics(reading, diagnosis),
    }


def _log(plan: ExplainPlan) -> dict[str, Any]:
    recovered, boot = plan.recovered, plan.request.log.boot
    has_state = bool(recovered.state_slots)
    slot, row = recovered.slot, recovered.row
    bounds = {"kv_bytes_per_token": row}
    if has_state:
        bounds |= {
            "state_bytes_per_slot": slot,
            "conv_bytes_per_slot": recovered.conv,
            "ssm_bytes_per_slot": recovered.recurrent,
        }
    return {
        "boot": {
            "line": boot.line,
            "boots": plan.request.log.num_boots,
            "rank": plan.pools.rank,
            "replicas": plan.replicas,
            "ranks": [_rank(plan, index) for index in range(len(boot.ranks))],
            "incomplete_ranks": list(boot.incomplete),
            "settings": dict(boot.settings),
        },
        "state_slots": recovered.state_slots,
        "kv_tokens": recovered.kv_tokens,
        "state_bytes_per_slot": slot.middle,
        "conv_bytes_per_slot": recovered.conv.middle,
        "ssm_bytes_per_slot": recovered.recurrent.middle,
        "kv_bytes_per_token": row.middle,
        "bounds": {name: _bounds(interval) for name, interval in bounds.items()},
        "token_equiv": slot.middle / row.middle if has_state and row.middle else None,
        "slots_per_request": plan.reserve.slots_per_request if has_state else None,
        "max_running_requests": plan.cap,
        "binding": plan.binding,
        "ratio": float(plan.current.ratio) if has_state else None,
        "page_size": recovered.page.low if recovered.page.is_exact else None,
        "draft_tokens": plan.reserve.draft_tokens,
        "balanced_ratio": None if plan.balanced is None else float(plan.balanced),
        "splits": [_split(row) for row in plan.rows],
        "concurrency": concurrency_document(plan.concurrency),
        "workload": workload_document(plan.workload),
        "provenance": {
            name: {"value": to_json(value.value), "source": value.source.value, "why": value.why}
            for name, value in plan.values.items()
        },
    }


def _rank(plan: ExplainPlan, index: int) -> dict[str, Any]:
    rank = plan.request.log.boot.ranks[index]
    state = rank.state
    return {
        "rank": rank.rank,
        "line": rank.line,
        "state_slots": state.slots if state else 0,
        "conv_gib": str(state.conv.gib) if state else None,
        "ssm_gib": str(state.recurrent.gib) if state else None,
        "kv_tokens": rank.kv_tokens,
        "kv_gib": [str(size.gib) for size in rank.kv.sizes],
        "kv_dtype": rank.kv.dtype or None,
        "draft_kv_gib": [[str(size.gib) for size in line.sizes] for line in rank.drafts],
    }


def _bounds(interval: Interval) -> list[int]:
    return [interval.low, interval.high]


def _split(row: SplitRow) -> dict[str, Any]:
    split = row.split
    cap = split.cap if split else None
    return {
        "name": row.name,
        "ratio": None if row.ratio is None else float(row.ratio),
        "state_slots": split.sizes.state_slots if split else None,
        "state_slots_bounds": _bounds(split.slots) if split else None,
        "kv_tokens": split.sizes.kv_tokens if split else None,
        "kv_tokens_bounds": _bounds(split.tokens) if split else None,
        "max_running_requests": cap.value if cap else 0,
        "binding": cap.binds if cap else None,
        "refused": row.refused or (split.refused if split else ""),
    }


def _metrics(reading: EngineReading, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "engine": reading.engine,
        "replicas": reading.replicas,
        "verdict": diagnosis.verdict.value,
        "pool": diagnosis.pool or None,
        "hit_rate": hit_rate_of(reading),
        "signs": [
            {"name": sign.name, "rule": sign.rule, "numbers": sign.numbers, "holds": sign.holds}
            for sign in diagnosis.signs
        ],
        "unknown": list(diagnosis.unknown),
        "advice": list(diagnosis.advice),
        "reading": reading.known(),
        "sources": dict(reading.sources),
    }
