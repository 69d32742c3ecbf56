"""Scrape: what a live engine's Prometheus text says of its pools, under neutral names.

Reads the names of twinpool, of the reference engine and of vLLM out of one text. Opens no
connection and judges nothing (`telemetry.diagnosis` does).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from twinpool.errors import ConfigError

# Labels of ranks that repeat one engine's numbers; those of replicas add up.
_RANK_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank", "ep_rank")
_REPLICA_LABELS = ("dp_rank", "engine")
_MODEL_LABELS = ("model_name", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One reading of a live engine; what it does not expose is None.

    Counts are of the whole engine, data parallel replicas added up; fractions are from 0 to 1.

    Attributes:
        engine: `twinpool`, `sglang` or `vllm`.
        replicas: Data parallel replicas that were added up.
        running: Requests that run.
        queued: Requests that wait.
        max_running: Cap on running requests in force.
        kv_capacity: Rows of the KV pool.
        kv_held: Rows that running requests hold; they cannot be evicted.
        kv_evictable: Cached rows that eviction could free.
        kv_free: Rows that nobody owns.
        kv_usage: Part of the KV pool that running requests hold.
        state_capacity: Slots of the state pool.
        state_held: Slots that running requests hold.
        state_evictable: Checkpoints that eviction could free.
        state_free: Slots that nobody owns.
        state_usage: Part of the state pool that running requests hold.
        prompt_tokens: Prompt tokens so far.
        cached_tokens: Those of them that came from the cache.
        hit_rate: Cached part of the prompts, where the engine says so itself.
        missed_tokens: Prompt tokens whose KV was cached but useless for want of a checkpoint.
        evicted_rows: Rows evicted so far.
        evicted_slots: Checkpoints evicted so far.
        retractions: Running requests sent back to the queue so far.
        sources: Field to the metrics that it was read from.
    """

    engine: str
    replicas: int = 1
    running: float | None = None
    queued: float | None = None
    max_running: float | None = None
    kv_capacity: float | None = None
    kv_held: float | None = None
    kv_evictable: float | None = None
    kv_free: float | None = None
    kv_usage: float | None = None
    state_capacity: float | None = None
    state_held: float | None = None
    state_evictable: float | None = None
    state_free: float | None = None
    state_usage: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    hit_rate: float | None = None
    missed_tokens: float | None = None
    evicted_rows: float | None = None
    evicted_slots: float | None = None
    retractions: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def known(self) -> dict[str, float]:
        """Return what was read, by field name."""
        names = [entry.name for entry in fields(self) if entry.name not in ("engine", "sources")]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a field comes from in one engine's text.

    Attributes:
        names: Metric names without prefix; the first that is there is taken.
        labels: Labels that a sample must have, with their values.
        is_fraction: True for a part of a whole, which replicas do not add up.
        without: A label and values of it that do not count.
    """

    names: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()
    is_fraction: bool = False
    without: tuple[str, frozenset[str]] = ("", frozenset())


def _of(*names: str, **labels: str) -> _Source:
    return _Source(names, tuple(labels.items()))


def _evicted(pool: str) -> _Source:
    """Count what went for want of room, not what a person or a rule of the cache dropped."""
    return _Source(
        ("evictions_total",),
        (("pool", pool),),
        without=("reason", frozenset({"flush", "rolling", "path_cap"})),
    )


def _part(*names: str) -> _Source:
    return _Source(names, is_fraction=True)


COUNTERS = (
    "prompt_tokens",
    "cached_tokens",
    "missed_tokens",
    "evicted_rows",
    "evicted_slots",
    "retractions",
)
# Field of a reading to its metric, per engine. Sources: our own table; the collector of the
# reference engine 0.5.23, where the `mamba_…_tokens` are slots; vLLM's page of production metrics,
# with the names that it has given up after the newer ones.
NAMES: dict[str, dict[str, _Source]] = {
    "twinpool": {
        "running": _of("num_running_reqs"),
        "queued": _of("num_queue_reqs"),
        "max_running": _of("max_running_requests"),
        "kv_capacity": _of("kv_capacity_rows"),
        "kv_evictable": _of("kv_evictable_rows"),
        "kv_free": _of("kv_free_rows"),
        "state_capacity": _of("state_capacity_slots"),
        "state_evictable": _of("state_evictable_slots"),
        "state_free": _of("state_free_slots"),
        "prompt_tokens": _of("prompt_tokens_total"),
        "cached_tokens": _of("cached_tokens_total"),
        "missed_tokens": _of("state_missed_tokens_total"),
        "evicted_rows": _evicted("kv"),
        "evicted_slots": _evicted("state"),
        "retractions": _of("retractions_total"),
    },
    "sglang": {
        "running": _of("num_running_reqs"),
        "queued": _of("num_queue_reqs"),
        "kv_capacity": _of("max_total_num_tokens"),
        "kv_held": _of("kv_used_tokens", "num_used_tokens"),
        "kv_evictable": _of("kv_evictable_tokens"),
        "kv_free": _of("kv_available_tokens"),
        "kv_usage": _part("full_token_usage"),
        "state_held": _of("mamba_used_tokens"),
        "state_evictable": _of("mamba_evictable_tokens"),
        "state_free": _of("mamba_available_tokens"),
        "state_usage": _part("mamba_usage"),
        "prompt_tokens": _of("prompt_tokens_total"),
        "cached_tokens": _of("cached_tokens_total"),
        "hit_rate": _part("cache_hit_rate"),
        "evicted_rows": _of("evicted_tokens_total"),
        "retractions": _of("num_retracted_requests_total"),
    },
    "vllm": {
        "running": _of("num_requests_running"),
        "queued": _of("num_requests_waiting"),
        "kv_usage": _part("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "prompt_tokens": _of("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
        "cached_tokens": _of("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
        "retractions": _of("num_preemptions_total"),
    },
}


def read_metrics(text: str) -> EngineReading:
    """Read one engine's numbers out of a Prometheus text.

    Args:
        text: What its `/metrics` route answers.

    Returns:
        The reading; a field that the engine does not expose is None.

    Raises:
        ConfigError: If it is not such a text, is of no engine that is known, or of several engines
            or models at once.
    """
    samples = _samples(text)
    found = {engine: picked for engine in NAMES if (picked := _pick(engine, samples))}
    if not found:
        raise ConfigError(
            f"{len(samples)} samples, and none of them is a metric of a serving engine",
            hint="give the text of /metrics of twinpool, SGLang (--enable-metrics) or vLLM",
        )
    if len(found) > 1:
        raise ConfigError(
            f"metrics of {len(found)} engines in one text: {', '.join(found)}",
            hint="give the text of one engine",
        )
    engine, picked = next(iter(found.items()))
    models = sorted({name for group in picked.values() for name in _models(group)})
    if len(models) > 1:
        raise ConfigError(
            f"metrics of {len(models)} models in one text: {', '.join(models)[:200]}",
            hint="give the text of one engine, not that of a gateway or a federation",
        )
    return _completed(_reading(engine, picked))


def since(earlier: EngineReading, later: EngineReading) -> EngineReading:
    """Return the later reading with its counters as of the earlier one.

    Args:
        earlier: The first of two readings of one engine.
        later: The second.

    Raises:
        ConfigError: If they are not two readings of one run of an engine, in this order.
    """
    if earlier.engine != later.engine:
        raise ConfigError(
            f"the first metrics are of {earlier.engine}, the second of {later.engine}",
            hint="give two readings of the same engine, the older one first",
        )
    gone: dict[str, Any] = {}
    for name in COUNTERS:
        before, after = getattr(earlier, name), getattr(later, name)
        if after is None:
            continue
        if after < (before or 0):
            raise ConfigError(
                f"{name} fell from {before:g} to {after:g} between the two readings",
                hint="give the older reading first, and none from before a restart",
            )
        gone[name] = after - (before or 0)
    # A rate that the engine made up itself may span another time.
    return replace(later, hit_rate=None, **gone)


def _samples(text: str) -> list[Sample]:
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, IndexError, KeyError) as error:
        raise ConfigError(
            # What stands in the text may be anything, control characters of terminals included.
            f"this is not Prometheus text: {str(error)[:120]!a}",
            hint="give what the engine's /metrics route answers, unchanged",
        ) from None
    return [sample for family in families for sample in family.samples]


def _pick(engine: str, samples: list[Sample]) -> dict[str, list[Sample]]:
    """Choose each field's samples; both `vllm:name` and `vllm_name` are read."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        head = sample.name[: len(engine) + 1]
        if head in (f"{engine}:", f"{engine}_") and math.isfinite(sample.value):
            by_name.setdefault(sample.name[len(engine) + 1 :], []).append(sample)
    picked: dict[str, list[Sample]] = {}
    for name, source in NAMES[engine].items():
        for metric in source.names:
            chosen = [sample for sample in by_name.get(metric, ()) if _has(sample, source)]
            if chosen:
                picked[name] = _one_rank(chosen)
                break
    return picked


def _has(sample: Sample, source: _Source) -> bool:
    label, left_out = source.without
    if label and sample.labels.get(label) in left_out:
        return False
    return all(sample.labels.get(label) == value for label, value in source.labels)


def _one_rank(samples: list[Sample]) -> list[Sample]:
    """Keep one rank's samples per replica, and totals rather than their parts by priority."""
    totals = [sample for sample in samples if not sample.labels.get("priority")]
    least: dict[tuple[str, ...], tuple[int, ...]] = {}
    for sample in totals:
        replica, rank = _replica(sample), _rank(sample)
        least[replica] = min(least.get(replica, rank), rank)
    return [sample for sample in totals if _rank(sample) == least[_replica(sample)]]


def _rank(sample: Sample) -> tuple[int, ...]:
    texts = [sample.labels.get(label, "") for label in _RANK_LABELS]
    return tuple(int(text) if text.isascii() and text.isdigit() else 0 for text in texts)


def _replica(sample: Sample) -> tuple[str, ...]:
    return tuple(sample.labels.get(label, "") for label in _REPLICA_LABELS)


def _models(samples: Iterable[Sample]) -> set[str]:
    return {
        name for sample in samples for label in _MODEL_LABELS if (name := sample.labels.get(label))
    }


def _reading(engine: str, picked: Mapping[str, list[Sample]]) -> EngineReading:
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    replicas = 1
    for name, samples in picked.items():
        source = NAMES[engine][name]
        total = float(sum(sample.value for sample in samples))
        count = len({_replica(sample) for sample in samples})
        values[name] = total / count if source.is_fraction else total
        replicas = max(replicas, count)
        labels = "".join(f'{{{label}="{value}"}}' for label, value in source.labels)
        sources[name] = samples[0].name + labels
    return EngineReading(engine=engine, replicas=replicas, sources=sources, **values)


def _completed(reading: EngineReading) -> EngineReading:
    """Fill in what follows from the rest: `capacity = held + evictable + free`."""
    values: dict[str, Any] = {}
    sources = dict(reading.sources)
    if reading.engine == "twinpool" and reading.prompt_tokens is not None:
        # Ours counts evictions by reason, and a reason that has not come up has no sample.
        for name in ("evicted_rows", "evicted_slots"):
            if getattr(reading, name) is None:
                values[name], sources[name] = 0.0, "evictions_total, none yet"
    for pool in ("kv", "state"):
        capacity, held, evictable, free = (
            getattr(reading, f"{pool}_{part}") for part in ("capacity", "held", "evictable", "free")
        )
        if evictable is not None and free is not None:
            if held is None and capacity is not None:
                held = values[f"{pool}_held"] = capacity - evictable - free
                sources[f"{pool}_held"] = "capacity - evictable - free"
            elif capacity is None and held is not None:
                capacity = values[f"{pool}_capacity"] = held + evictable + free
                sources[f"{pool}_capacity"] = "held + evictable + free"
        if getattr(reading, f"{pool}_usage") is None and held is not None and capacity:
            values[f"{pool}_usage"] = held / capacity
            sources[f"{pool}_usage"] = "held / capacity"
    return replace(reading, sources=sources, **values)
