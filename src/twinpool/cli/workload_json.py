"""The stable JSON of workload plans, the same for every verb; knows no verb."""

from __future__ import annotations

from typing import Any

from twinpool.memory.workload import ConcurrencyPlan, WorkloadPlan


def concurrency_document(plan: ConcurrencyPlan | None) -> dict[str, Any] | None:
    """Write a concurrency plan; null when there is none."""
    if plan is None:
        return None
    return {
        "average_context": plan.average_context,
        "max_running_requests": plan.running,
        "state_slots": plan.sizes.state_slots if plan.sizes else None,
        "kv_tokens": plan.sizes.kv_tokens if plan.sizes else None,
    }


def workload_document(plan: WorkloadPlan | None) -> dict[str, Any] | None:
    """Write a workload plan; null when there is none."""
    if plan is None:
        return None
    return {
        "sessions": plan.workload.sessions,
        "session_context": plan.workload.session_context,
        "running": plan.workload.running,
        "checkpoints_per_session": plan.workload.checkpoints_per_session,
        "state_slots": plan.state_slots,
        "margin_slots": plan.margin_slots,
        "kv_tokens": plan.kv_tokens,
        "kv_tokens_needed": plan.kv_tokens_needed,
        "spare_tokens": plan.spare_tokens,
        "fits": plan.fits,
        "max_sessions": plan.max_sessions,
        "host_bytes": plan.host_bytes,
    }
