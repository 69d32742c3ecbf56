"""The stable JSON of a replay; knows no layout for people."""

from __future__ import annotations

import dataclasses
from typing import Any

from twinpool.cli.replay_setup import Prepared
from twinpool.replay.run import Outcome
from twinpool.replay.summary import Spread
from twinpool.settings.resolve import to_json


def replay_document(prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
    """Build the document; times are virtual seconds, counts are tokens unless named otherwise.

    Args:
        prepared: What was replayed.
        outcome: What came of it.
    """
    summary, tally, setup = outcome.summary, outcome.tally, prepared.setup
    return {
        "trace": setup.trace.name,
        "format": setup.trace.format,
        "model": prepared.model.name,
        "loop": "open loop" if setup.starts is None else f"{len(setup.starts)} lanes",
        "requests": summary.requests,
        "unfinished": len(tally.unfinished),
        "refused": len(tally.refused),
        "duration_s": summary.duration_s,
        "hit_rate": summary.hit_rate,
        "hit_rate_by_tier": {"device": summary.hit_rate},
        "reusable_rate": summary.reusable_rate,
        "output_tokens_per_s": summary.output_tokens_per_s,
        "ttft_s": spread_document(summary.ttft_s),
        "tpot_s": spread_document(summary.tpot_s),
        "e2e_s": spread_document(summary.e2e_s),
        "wait_s": spread_document(summary.wait_s),
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "computed_tokens": tally.prefill_tokens,
        "state_missed_tokens": summary.missed_tokens,
        "regretted_tokens": summary.regretted_tokens,
        "output_tokens": summary.output_tokens,
        "longest_queue": tally.longest_queue,
        "retractions": summary.retractions,
        "by_turn": [dataclasses.asdict(group) for group in summary.by_turn],
        "pools": _pools(prepared, outcome),
        "evictions": _evictions(outcome),
        "policies": {
            name: to_json(setup.resolved.values[name].value)
            for name in (
                "schedule_policy",
                "radix_eviction_policy",
                "mamba_radix_cache_strategy",
                "mamba_max_states_per_path",
                "memory_mode",
                "chunked_prefill_size",
            )
        },
        "cost": {
            name: {"value": value.value, "source": value.source.value, "why": value.why}
            for name, value in setup.cost.terms.items()
        },
        "timeline": [dataclasses.asdict(sample) for sample in outcome.samples],
        "notes": list(prepared.plan.notes),
    }


def spread_document(spread: Spread) -> dict[str, float]:
    """Write a spread as an object."""
    return dataclasses.asdict(spread)


def _pools(prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
    counts, pools = prepared.setup.counts, prepared.plan.pools
    # One memory has no pools: what either kind could take alone.
    is_arena = counts.arena is not None
    return {
        "state_slots": pools.num_slots if is_arena else counts.num_slots,
        "kv_tokens": pools.num_rows if is_arena else counts.num_rows,
        "max_running_requests": counts.max_running_requests,
        "slots_per_request": pools.sizes.slots_per_request,
        "memory_after_weights": pools.sizes.rest_bytes,
        "unit_tokens": outcome.unit_tokens,
    }


def _evictions(outcome: Outcome) -> dict[str, Any]:
    unit = outcome.unit_tokens
    return {
        "kv_tokens": {name: count * unit for name, count in outcome.snapshot.kv.evictions.items()},
        "state_slots": dict(outcome.snapshot.state.evictions),
        "skipped_checkpoints": outcome.snapshot.skipped_checkpoints,
    }
