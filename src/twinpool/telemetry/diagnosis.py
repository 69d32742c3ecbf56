"""Diagnosis: which of the two ways to run out a live engine shows, and by which rule.

Concurrency-bound: requests wait although memory of one kind lies idle, because the other kind is
held by those that run. Residency-bound: what sessions come back for is gone by then. Knows neutral
readings and no metric names; every verdict carries the numbers it rests on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from twinpool.telemetry.scrape import EngineReading

# Where the lines are drawn. They are assumptions, and are shown as such.
FULL = 0.9
STATE_FULL = 0.8
IDLE = 0.7
LOW_HIT_RATE = 0.5
# Below so many prompt tokens a hit rate says nothing yet.
FEW_PROMPT_TOKENS = 10_000
NOTHING_FREE = 0.05
MUCH_EVICTABLE = 0.1
MUCH_MISSED = 0.05


class Verdict(enum.StrEnum):
    """Which way to run out an engine shows."""

    CONCURRENCY = "concurrency-bound"
    RESIDENCY = "residency-bound"
    BOTH = "concurrency-bound and residency-bound"
    NEITHER = "neither"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One rule, the numbers that it was applied to, and what came out.

    Attributes:
        name: Short name, such as `requests wait`.
        rule: The rule, with its bound.
        numbers: What it was applied to; what is missing where `holds` is None.
        holds: Whether the rule holds; None when the numbers for it are missing.
    """

    name: str
    rule: str
    numbers: str
    holds: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What an engine shows, and why.

    Attributes:
        verdict: Which way to run out.
        pool: What is short: `state`, `kv`, `both`, `cap`, or `blocks` of an engine that has one
            pool for all; empty when that cannot be told.
        signs: Every rule with its numbers.
        unknown: What would have to be known to say more.
        advice: What to change.
    """

    verdict: Verdict
    pool: str
    signs: tuple[Sign, ...]
    unknown: tuple[str, ...]
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of an engine from elsewhere, such as its boot log.

    Attributes:
        cap: Cap on running requests in force, over all replicas; None when not known.
        cap_binds: What decided it: `state`, `kv` or `asked`; empty when not known.
    """

    cap: int | None = None
    cap_binds: str = ""


def diagnose(reading: EngineReading, known: Known | None = None) -> Diagnosis:
    """Say which way to run out an engine shows.

    Args:
        reading: One reading, or the difference of two.
        known: What is known from elsewhere.
    """
    known = known or Known()
    waits, at_cap = _waits(reading), _at_cap(reading, known)
    state_full, kv_full = _state_full(reading), _kv_full(reading)
    low_hits, evicts = _low_hits(reading), _evicts(reading)
    state_cached, kv_cached = _all_cached(reading, "state"), _all_cached(reading, "kv")
    missed = _missed(reading)
    bound = _all([waits.holds, _any([at_cap.holds, state_full.holds, kv_full.holds])])
    lost = _any([evicts.holds, state_cached.holds, kv_cached.holds])
    gone = _any([missed.holds, _all([low_hits.holds, lost])])
    signs = (
        waits,
        at_cap,
        state_full,
        kv_full,
        low_hits,
        evicts,
        state_cached,
        kv_cached,
        missed,
    )
    verdict = _verdict(bound, gone)
    pool = ""
    if bound:
        pool = _short_of(state_full, kv_full, known)
        # The other pool has to lie idle for a shift of the split to help.
        if pool == "state" and (reading.kv_usage or 0) >= IDLE:
            pool = "both"
    elif gone:
        pool = _lost_in(missed, state_cached, kv_cached)
    if reading.engine == "vllm" and pool in ("kv", "state", "both"):
        pool = "blocks"
    return Diagnosis(
        verdict=verdict,
        pool=pool,
        signs=signs,
        unknown=tuple(_unknown(reading, signs, bool(gone))),
        advice=tuple(_advice(verdict, pool)),
    )


def hit_rate_of(reading: EngineReading) -> float | None:
    """Return cached prompt tokens by prompt tokens, else what the engine calls its hit rate."""
    if reading.prompt_tokens and reading.cached_tokens is not None:
        return reading.cached_tokens / reading.prompt_tokens
    return reading.hit_rate


def _all(parts: Iterable[bool | None]) -> bool | None:
    known = list(parts)
    return False if False in known else None if None in known else True


def _any(parts: Iterable[bool | None]) -> bool | None:
    known = list(parts)
    return True if True in known else None if None in known else False


def _verdict(bound: bool | None, gone: bool | None) -> Verdict:
    if bound and gone:
        return Verdict.BOTH
    if bound:
        return Verdict.CONCURRENCY
    if gone:
        return Verdict.RESIDENCY
    return Verdict.UNKNOWN if None in (bound, gone) else Verdict.NEITHER


def _waits(reading: EngineReading) -> Sign:
    queued = reading.queued
    return Sign(
        name="requests wait",
        rule="1 or more in the queue",
        numbers="length of the queue missing"
        if queued is None
        else f"{_count(queued)} in the queue",
        holds=None if queued is None else queued >= 1,
    )


def _at_cap(reading: EngineReading, known: Known) -> Sign:
    cap = reading.max_running if reading.max_running is not None else known.cap
    running = reading.running
    if running is None or not cap:
        numbers = "cap in force missing" if running is not None else "running requests missing"
        return Sign(name="at the cap", rule="running = cap in force", numbers=numbers, holds=None)
    return Sign(
        name="at the cap",
        rule="running = cap in force",
        numbers=f"{_count(running)} of {_count(cap)} run",
        holds=running >= cap,
    )


def _state_full(reading: EngineReading) -> Sign:
    # Requests hold fewer slots than they reserve most of the time, hence less than full.
    usage = reading.state_usage
    return Sign(
        name="state pool held",
        rule=f"running requests hold {STATE_FULL:.0%} of the slots or more",
        numbers=_pool_numbers(reading, "state"),
        holds=None if usage is None else usage >= STATE_FULL,
    )


def _kv_full(reading: EngineReading) -> Sign:
    usage = reading.kv_usage
    return Sign(
        name="KV pool held",
        rule=f"running requests hold {FULL:.0%} of the rows or more",
        numbers=_pool_numbers(reading, "kv"),
        holds=None if usage is None else usage >= FULL,
    )


def _low_hits(reading: EngineReading) -> Sign:
    rate = hit_rate_of(reading)
    if rate is None:
        numbers = "prompt and cached tokens missing"
    elif reading.prompt_tokens and reading.cached_tokens is not None:
        numbers = (
            f"{_count(reading.cached_tokens)} of {_count(reading.prompt_tokens)} prompt tokens, "
            f"{rate:.2f}"
        )
    else:
        numbers = f"{rate:.2f}, the engine's own figure for its last steps"
    is_early = reading.prompt_tokens is not None and reading.prompt_tokens < FEW_PROMPT_TOKENS
    return Sign(
        name="few tokens cached",
        rule=f"hit rate below {LOW_HIT_RATE:g}, of {FEW_PROMPT_TOKENS:,} prompt tokens or more",
        numbers=numbers,
        holds=None if rate is None or is_early else rate < LOW_HIT_RATE,
    )


def _evicts(reading: EngineReading) -> Sign:
    counts = [
        (count, unit)
        for count, unit in ((reading.evicted_rows, "rows"), (reading.evicted_slots, "checkpoints"))
        if count is not None
    ]
    # No evicted rows say nothing of checkpoints where the engine does not count those.
    holds = True if any(count > 0 for count, _ in counts) else False if len(counts) == 2 else None
    return Sign(
        name="cache evicts",
        rule="any row or checkpoint evicted",
        numbers=", ".join(f"{_count(count)} {unit}" for count, unit in counts)
        or "evictions missing",
        holds=holds,
    )


def _all_cached(reading: EngineReading, pool: str) -> Sign:
    free, evictable, capacity = (
        getattr(reading, f"{pool}_{part}") for part in ("free", "evictable", "capacity")
    )
    name = "state pool full of checkpoints" if pool == "state" else "KV pool full of cached rows"
    rule = f"below {NOTHING_FREE:.0%} free and above {MUCH_EVICTABLE:.0%} evictable"
    if free is None or evictable is None or not capacity:
        return Sign(name=name, rule=rule, numbers="free and evictable missing", holds=None)
    return Sign(
        name=name,
        rule=rule,
        numbers=f"{_count(free)} free and {_count(evictable)} evictable of {_count(capacity)}",
        holds=free < NOTHING_FREE * capacity and evictable > MUCH_EVICTABLE * capacity,
    )


def _missed(reading: EngineReading) -> Sign:
    name = "KV without a checkpoint"
    rule = f"{MUCH_MISSED:.0%} or more of the prompt tokens had KV that was useless"
    missed, prompts = reading.missed_tokens, reading.prompt_tokens
    if missed is None or prompts is None:
        return Sign(name=name, rule=rule, numbers="the engine does not count it", holds=None)
    return Sign(
        name=name,
        rule=rule,
        numbers=f"{_count(missed)} of {_count(prompts)} prompt tokens",
        holds=prompts > 0 and missed >= MUCH_MISSED * prompts,
    )


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _pool_numbers(reading: EngineReading, pool: str) -> str:
    usage, held, capacity = (
        getattr(reading, f"{pool}_{part}") for part in ("usage", "held", "capacity")
    )
    if usage is None:
        return "occupancy missing"
    counts = "" if held is None or not capacity else f"{_count(held)} of {_count(capacity)}, "
    return f"{counts}{usage:.2f}"


def _short_of(state_full: Sign, kv_full: Sign, known: Known) -> str:
    if kv_full.holds and not state_full.holds:
        return "kv"
    if state_full.holds and not kv_full.holds:
        return "state"
    if state_full.holds and kv_full.holds:
        return "both"
    if known.cap_binds in ("state", "kv"):
        return known.cap_binds
    return "cap" if known.cap_binds == "asked" else ""


def _lost_in(missed: Sign, state_cached: Sign, kv_cached: Sign) -> str:
    if missed.holds or (state_cached.holds and not kv_cached.holds):
        return "state"
    return "kv" if kv_cached.holds and not state_cached.holds else ""


def _unknown(reading: EngineReading, signs: Iterable[Sign], is_gone: bool) -> Iterable[str]:
    yield from (f"{sign.name}: {sign.numbers}" for sign in signs if sign.holds is None)
    if reading.engine == "vllm":
        yield "vLLM keeps rows and states in one pool of blocks: which of them fills it is not told"
    if is_gone and reading.missed_tokens is None:
        yield (
            "whether prompts come back at all: fresh prompts look the same in these metrics; "
            "compare with --sessions and --session-context"
        )


def _advice(verdict: Verdict, pool: str) -> Iterable[str]:
    if verdict in (Verdict.CONCURRENCY, Verdict.BOTH):
        yield {
            "state": "give the state pool more: raise --mamba-full-memory-ratio or "
            "--max-mamba-cache-size, reserve fewer slots (--mamba-radix-cache-strategy), or halve "
            "the state (--mamba-ssm-dtype bfloat16)",
            "kv": "give the KV pool more: lower --mamba-full-memory-ratio, raise "
            "--mem-fraction-static, or store rows in fewer bits (--kv-cache-dtype)",
            "both": f"running requests hold {IDLE:.0%} of the rows or more as well, so no split "
            "helps: give the pools more memory, or store states and rows in fewer bits "
            "(--mamba-ssm-dtype bfloat16, --kv-cache-dtype)",
            "blocks": "give the pool of blocks more: raise --gpu-memory-utilization, or store rows "
            "in fewer bits (--kv-cache-dtype fp8)",
            "cap": "raise --max-running-requests: neither pool is full",
        }.get(pool, "read the boot log beside the metrics: it says which pool set the cap")
    if verdict in (Verdict.RESIDENCY, Verdict.BOTH):
        yield {
            "state": "checkpoints go first: keep more slots beyond what running requests reserve, "
            "or fewer checkpoints per path (--mamba-max-states-per-path)",
            "kv": "rows go first: lower --mamba-full-memory-ratio so that the retained contexts "
            "fit, or back them up on the host",
        }.get(
            pool if verdict is Verdict.RESIDENCY else "",
            "size for what stays: --sessions, --session-context and --running say the split",
        )
    if verdict is Verdict.NEITHER:
        yield "no change of the split is called for by these numbers"
