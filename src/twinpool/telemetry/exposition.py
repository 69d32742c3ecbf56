"""Prometheus text format 0.0.4 out of a snapshot and the front's recorder.

Reads the snapshot's fields and never a pool. The format is the same whatever the scraper accepts:
newer ones forbid or escape the `:` in the names.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from twinpool.scheduling.events import Snapshot
from twinpool.telemetry.recorder import Recorder
from twinpool.telemetry.table import METRICS, PREFIX, Metric, MetricKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_Samples = list[tuple[tuple[str, ...], float]]


def render(
    recorder: Recorder, snapshot: Snapshot | None, *, is_up: bool, num_restarts: int
) -> bytes:
    """Return the exposition.

    Args:
        recorder: What the front counted.
        snapshot: The engine's latest; None before the first, which leaves its metrics out.
        is_up: Whether the engine is ready.
        num_restarts: How often the engine was started again.
    """
    values: dict[str, _Samples] = {
        "engine_up": [((), float(is_up))],
        "engine_restarts": [((), float(num_restarts))],
        "http_responses": [
            ((route, str(status)), float(count))
            for (route, status), count in sorted(recorder.responses.items())
        ],
    }
    if snapshot is not None:
        values |= _engine_values(snapshot)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OneShot(values, recorder))
    return generate_latest(registry)


class _OneShot(Collector):
    """Yields the table's families once, in the table's order."""

    def __init__(self, values: dict[str, _Samples], recorder: Recorder) -> None:
        self._values = values
        self._recorder = recorder

    def collect(self) -> Iterator[_Family]:
        for metric in METRICS:
            if metric.kind is MetricKind.HISTOGRAM:
                yield self._histogram(metric)
            elif metric.key in self._values:
                yield _plain(metric, self._values[metric.key])

    def describe(self) -> list[_Family]:
        return []

    def _histogram(self, metric: Metric) -> HistogramMetricFamily:
        histogram = self._recorder.histograms[metric.key]
        family = HistogramMetricFamily(PREFIX + metric.key, metric.help)
        family.add_metric([], buckets=histogram.cumulative(), sum_value=histogram.sum)
        return family


def _plain(metric: Metric, samples: _Samples) -> _Family:
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(PREFIX + metric.key, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _engine_values(snapshot: Snapshot) -> dict[str, _Samples]:
    numbers = {
        "num_running_reqs": snapshot.num_running,
        "num_queue_reqs": snapshot.num_waiting,
        "max_running_requests": snapshot.max_running_requests,
        "kv_capacity_rows": snapshot.kv.capacity,
        "kv_free_rows": snapshot.kv.free,
        "kv_working_rows": snapshot.kv.working,
        "kv_cached_rows": snapshot.kv.cached,
        "kv_evictable_rows": snapshot.kv.evictable,
        "state_capacity_slots": snapshot.state.capacity,
        "state_free_slots": snapshot.state.free,
        "state_working_slots": snapshot.state.working,
        "state_checkpoint_slots": snapshot.state.cached,
        "state_evictable_slots": snapshot.state.evictable,
        "steps": snapshot.num_steps,
        "prompt_tokens": snapshot.prompt_tokens,
        "cached_tokens": snapshot.cached_tokens,
        "computed_tokens": snapshot.computed_tokens,
        "generation_tokens": snapshot.output_tokens,
        "state_missed_tokens": snapshot.state_missed_tokens,
        "retractions": snapshot.retractions,
        "skipped_checkpoints": snapshot.skipped_checkpoints,
        "thrashed_tokens": snapshot.thrashed_tokens,
        "moved_rows": snapshot.moved_rows,
        "longest_wait_seconds": snapshot.longest_wait_s,
    }
    values: dict[str, _Samples] = {key: [((), float(n))] for key, n in numbers.items()}
    values["evictions"] = [
        ((pool, reason), float(count))
        for pool, counts in (("kv", snapshot.kv), ("state", snapshot.state))
        for reason, count in sorted(counts.evictions.items())
    ]
    values["requests_finished"] = [
        ((reason,), float(count)) for reason, count in sorted(snapshot.finished.items())
    ]
    return values
