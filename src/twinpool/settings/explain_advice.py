"""Advice on a boot log: what to change for the requests, or the sessions, that were asked for.

Sentences from an explain plan; works out no split but the one that it advises, and reads no log.
"""

from __future__ import annotations

from collections.abc import Iterator

from twinpool.errors import CapacityError
from twinpool.memory.recover import split_again
from twinpool.memory.workload import ConcurrencyPlan, WorkloadPlan
from twinpool.settings.explain_records import ExplainPlan


def advise(plan: ExplainPlan) -> Iterator[str]:
    """Yield what to change, a sentence each.

    Args:
        plan: What the log came to; its own advice is not looked at.
    """
    if plan.concurrency is not None:
        yield from _for_context(plan, plan.concurrency)
    if plan.workload is not None:
        yield from _for_sessions(plan, plan.workload)
    if plan.concurrency is None and plan.workload is None:
        yield from _for_cap(plan)


def _for_cap(plan: ExplainPlan) -> Iterator[str]:
    """What it takes to run what was asked, where a pool stands in the way."""
    asked = plan.reserve.asked
    if plan.binding not in ("state", "kv") or asked is None or asked <= plan.cap:
        if plan.recovered.state_slots:
            yield (
                "say what the traffic is for more: --average-context, or --sessions and "
                "--session-context"
            )
        return
    slots = asked * plan.reserve.slots_per_request
    if plan.binding == "kv":
        yield f"the KV pool caps {asked} requests to {plan.cap}: give it more memory"
        return
    try:
        split = split_again(plan.recovered, plan.reserve, pinned_slots=slots)
    except CapacityError:
        yield (
            f"{asked} requests need {slots} slots, more than the memory of both pools: reserve "
            "fewer per request, or halve the state with --mamba-ssm-dtype bfloat16"
        )
        return
    yield (
        f"for {asked} requests: {_pin(slots, plan.replicas)}, which leaves "
        f"{split.sizes.kv_tokens:,} KV tokens"
    )


def _for_context(plan: ExplainPlan, found: ConcurrencyPlan) -> Iterator[str]:
    context = found.average_context
    now = min(plan.recovered.kv_tokens // context, plan.cap)
    if found.sizes is None:
        yield f"not even one request of {context:,} tokens fits: both pools are too small together"
    elif found.running > now:
        slots = found.sizes.state_slots
        pin = f": {_pin(slots, plan.replicas)}" if slots else ""
        yield (
            f"for requests of {context:,} tokens, {found.running} run at once rather than {now}"
            f"{pin}, {found.sizes.kv_tokens:,} KV tokens"
        )
    else:
        yield f"for requests of {context:,} tokens the split is as good as any: {now} run at once"


def _for_sessions(plan: ExplainPlan, found: WorkloadPlan) -> Iterator[str]:
    recovered = plan.recovered
    missing_slots = found.state_slots - recovered.state_slots
    missing_tokens = found.kv_tokens_needed - recovered.kv_tokens
    if missing_slots <= 0 and missing_tokens <= 0:
        yield (
            f"the sessions fit as it is: {-missing_slots:,} slots and {-missing_tokens:,} KV "
            "tokens to spare"
        )
        return
    short = [f"{missing_slots:,} slots"] if missing_slots > 0 else []
    short += [f"{missing_tokens:,} KV tokens"] if missing_tokens > 0 else []
    lead = f"as it is, {' and '.join(short)} are missing"
    if found.fits:
        yield (
            f"{lead}; {_pin(found.state_slots, plan.replicas)} holds the sessions, with "
            f"{found.spare_tokens:,} KV tokens to spare"
        )
    else:
        yield (
            f"{lead}, and no split holds them all: at most {found.max_sessions:,} sessions fit; "
            "keep fewer, give the pools more memory, or back up the rest on the host"
        )


def _pin(slots: int, replicas: int) -> str:
    """Write the flag for so many slots per replica: the server shares its own number out."""
    return f"--max-mamba-cache-size {slots * replicas}"
