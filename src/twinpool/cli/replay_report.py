"""The text of `twinpool replay`, for people; knows no arithmetic."""

from __future__ import annotations

from typing import Any

from twinpool.cli.output import columns
from twinpool.cli.replay_setup import Prepared
from twinpool.replay.run import Outcome
from twinpool.replay.summary import Spread, Summary


def replay_report(prepared: Prepared, outcome: Outcome, bound: dict[str, Any] | None = None) -> str:
    """Write the report.

    Args:
        prepared: What was replayed.
        outcome: What came of it.
        bound: What no policy could exceed; None when it was not asked for.

    Returns:
        Text without a newline at its end.
    """
    parts = [
        _head(prepared),
        _served(outcome, bound),
        _tokens(outcome),
        _latencies(outcome.summary),
        _turns(outcome.summary),
        _memory(prepared, outcome),
        _cost(prepared),
    ]
    notes = [*prepared.plan.notes, *_refusals(outcome)]
    if notes:
        parts.append("notes\n" + "\n".join(f"  {note}" for note in notes))
    return "\n\n".join(part for part in parts if part)


def _head(prepared: Prepared) -> str:
    setup, resolved = prepared.setup, prepared.setup.resolved
    loop = "open loop" if setup.starts is None else f"{len(setup.starts)} lanes"
    policies = (
        f"{resolved.scheduling.schedule_policy}, {resolved.memory.radix_eviction_policy}, "
        f"{resolved.memory.mamba_radix_cache_strategy.value}"
    )
    return f"{setup.trace.name} on {prepared.model.name}\n{loop}, {policies}"


def _served(outcome: Outcome, bound: dict[str, Any] | None) -> str:
    summary, tally = outcome.summary, outcome.tally
    rows = [
        ["hit rate", f"{summary.hit_rate:.3f}", f"{summary.reusable_rate:.3f} without limits"],
    ]
    if bound is not None:
        share = summary.hit_rate / bound["hit_rate"] if bound["hit_rate"] else 1.0
        text = f"no policy could exceed it ({bound['kind']}); this is {share:.0%} of it"
        rows.append(["bound", f"{bound['hit_rate']:.3f}", text])
        one = f"with one budget for both ({bound['one_budget_kind']})"
        rows.append(["", f"{bound['one_budget_hit_rate']:.3f}", one])
    rows += [
        ["output", f"{summary.output_tokens_per_s:,.0f}", "tokens per second"],
        ["requests", f"{summary.requests:,}", f"in {summary.duration_s:,.0f} s of virtual time"],
    ]
    if tally.unfinished:
        rows.append(["unfinished", f"{len(tally.unfinished):,}", "when time was up"])
    return columns(rows, right=(1,))


def _tokens(outcome: Outcome) -> str:
    summary = outcome.summary
    rows = [
        ["prompts", f"{summary.prompt_tokens:,}", ""],
        ["from the cache", f"{summary.cached_tokens:,}", ""],
        ["computed", f"{outcome.tally.prefill_tokens:,}", "repeats and unfinished ones included"],
        ["KV without state", f"{summary.missed_tokens:,}", "KV was there, the checkpoint was not"],
        ["regretted", f"{summary.regretted_tokens:,}", "evicted or never kept, and wanted again"],
        ["answers", f"{summary.output_tokens:,}", ""],
    ]
    return "tokens\n" + columns(rows, right=(1,))


def _latencies(summary: Summary) -> str:
    rows = [["", "p50", "p90", "p99", "max"]]
    for name, spread, factor in (
        ("first token, s", summary.ttft_s, 1.0),
        ("token, ms", summary.tpot_s, 1000.0),
        ("whole answer, s", summary.e2e_s, 1.0),
        ("wait in queue, s", summary.wait_s, 1.0),
    ):
        rows.append([name, *_spread(spread, factor)])
    return "latency\n" + columns(rows, right=(1, 2, 3, 4))


def _spread(spread: Spread, factor: float) -> list[str]:
    return [f"{value * factor:,.2f}" for value in (spread.p50, spread.p90, spread.p99, spread.max)]


def _turns(summary: Summary) -> str:
    if len(summary.by_turn) < 2:
        return ""
    rows = [["turn", "requests", "hit rate"]]
    for group in summary.by_turn:
        last = "on" if group.last is None else f"- {group.last + 1}"
        name = str(group.first + 1) if group.last == group.first else f"{group.first + 1} {last}"
        rows.append([name, f"{group.requests:,}", f"{group.hit_rate:.3f}"])
    return "hits by turn\n" + columns(rows, right=(1, 2))


def _memory(prepared: Prepared, outcome: Outcome) -> str:
    counts, snapshot, unit = prepared.setup.counts, outcome.snapshot, outcome.unit_tokens
    arena, pools = counts.arena, prepared.plan.pools
    # One memory has no pools: what either kind could take alone.
    kv, states = ("KV pool", "state pool") if arena is None else ("KV, at most", "states, at most")
    tokens = counts.num_rows if arena is None else pools.num_rows
    rows = [[kv, f"{tokens:,} tokens", _evicted(snapshot.kv.evictions, unit)]]
    if counts.needs_state:
        slots = f"{counts.num_slots if arena is None else pools.num_slots:,} slots"
        rows.append([states, slots, _evicted(snapshot.state.evictions, 1)])
        skipped = f"{snapshot.skipped_checkpoints:,}"
        rows.append(["skipped checkpoints", skipped, "wanted, and no slot was to be had"])
    if arena is not None:
        taken = f"{arena.rows_per_slot:,} tokens"
        rows.append(["a state", taken, "that could be in its place: rows and states share memory"])
    if counts.shared is not None:
        page = f"{counts.shared.page_tokens:,} tokens"
        rows.append(["page of the one memory", page, "hits end on its multiples"])
    rows.append(["longest queue", f"{outcome.tally.longest_queue:,}", ""])
    rows.append(["running at most", f"{counts.max_running_requests:,}", f"{unit} tokens in a unit"])
    return "memory\n" + columns(rows, right=(1,))


def _evicted(evictions: dict[str, int], unit: int) -> str:
    known = [f"{reason} {count * unit:,}" for reason, count in evictions.items() if count]
    return "evicted: " + (", ".join(known) if known else "nothing")


def _cost(prepared: Prepared) -> str:
    rows = []
    for name, value in prepared.setup.cost.terms.items():
        number = value.value
        shown = f"{number:,.6g}" if isinstance(number, float) else f"{number:,}"
        why = f"{value.source.value}: {value.why}" if value.why else value.source.value
        rows.append([name, shown, why])
    return "step cost\n" + columns(rows, right=(1,))


def _refusals(outcome: Outcome) -> list[str]:
    refused = outcome.tally.refused
    if not refused:
        return []
    ticket, reason = refused[0]
    return [
        f"{len(refused):,} requests were refused, the first of session {ticket.session}, turn "
        f"{ticket.turn + 1}: {reason}"
    ]
