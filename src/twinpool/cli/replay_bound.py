"""The upper bound for a replay: what no cache policy could exceed on its schedule and bytes.

Runs the replay once more for its schedule; knows no layout for people.
"""

from __future__ import annotations

from typing import Any

from twinpool.cli.replay_setup import Prepared
from twinpool.replay.bound import Bound, hit_bound
from twinpool.replay.run import Outcome, run_replay


def bound_document(prepared: Prepared, outcome: Outcome | None = None) -> dict[str, Any]:
    """Bound the hit rate for the schedule of a replay: its own split, and one budget.

    Args:
        prepared: The replay.
        outcome: What came of it; None runs it.

    Returns:
        `hit_rate` for the split that was replayed, `one_budget` for the same bytes without one;
        both are the same where rows and states shared one memory.
    """
    found = outcome or run_replay(prepared.setup)
    counts, unit = prepared.setup.counts, found.unit_tokens
    sizes = prepared.plan.pools.sizes
    geometry = sizes.geometry
    cut_short = found.tally.cut_short
    shared = hit_bound(
        found.tally.served,
        unfinished=cut_short,
        one_budget=(sizes.rest_bytes, geometry.row_bytes * unit, geometry.slot_bytes),
    )
    static = shared
    if counts.shared is None and counts.arena is None:
        static = hit_bound(
            found.tally.served,
            unfinished=cut_short,
            capacity_units=counts.num_rows // unit,
            state_slots=counts.num_slots if counts.needs_state else None,
        )
    # What a split allows is allowed without one, so both hold for it.
    tightest = min(static, shared, key=lambda bound: bound.hit_rate)
    return {
        "hit_rate": tightest.hit_rate,
        "kind": _kind(tightest),
        "one_budget_hit_rate": shared.hit_rate,
        "one_budget_kind": _kind(shared),
    }


def _kind(bound: Bound) -> str:
    exactness = "every moment" if bound.is_exact else f"{bound.num_rows:,} moments"
    return f"{bound.kind}, {exactness}"
