"""The metric table: every metric's name, type, unit and meaning, in one place.

Values come from elsewhere; nothing here counts. Exposition, documentation and dashboards read the
same rows. Pools are counted in their own unit: KV rows and state slots.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

PREFIX = "twinpool:"


class MetricKind(enum.Enum):
    """Prometheus types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        key: Name without prefix, and for counters without `_total`.
        kind: Its type.
        help: What it says, in one sentence.
        unit: `requests`, `rows`, `slots`, `tokens`, `seconds`, `steps`, or empty.
        labels: Label names in order.
        buckets: Upper bounds of a histogram, rising; the infinite one is implied.
    """

    key: str
    kind: MetricKind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The name as it is exposed."""
        suffix = "_total" if self.kind is MetricKind.COUNTER else ""
        return f"{PREFIX}{self.key}{suffix}"


def _gauge(key: str, unit: str, help_text: str) -> Metric:
    return Metric(key=key, kind=MetricKind.GAUGE, unit=unit, help=help_text)


def _counter(key: str, unit: str, help_text: str, *labels: str) -> Metric:
    return Metric(key=key, kind=MetricKind.COUNTER, unit=unit, help=help_text, labels=labels)


def _seconds(key: str, help_text: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(
        key=key, kind=MetricKind.HISTOGRAM, unit="seconds", help=help_text, buckets=buckets
    )


_WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
_WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)

METRICS: tuple[Metric, ...] = (
    _gauge("engine_up", "", "1 while the engine process is ready, else 0."),
    _counter("engine_restarts", "", "Times that the engine process was started again."),
    _gauge("num_running_reqs", "requests", "Requests that hold a working state."),
    _gauge("num_queue_reqs", "requests", "Requests that wait for admission."),
    _gauge("max_running_requests", "requests", "Cap on running requests that is in force."),
    _gauge("kv_capacity_rows", "rows", "Rows of the KV pool, padding left out."),
    _gauge("kv_free_rows", "rows", "Rows that nobody owns."),
    _gauge("kv_working_rows", "rows", "Rows that running requests own."),
    _gauge("kv_cached_rows", "rows", "Rows that the prefix cache owns."),
    _gauge("kv_evictable_rows", "rows", "Cached rows that eviction could free now."),
    _gauge("state_capacity_slots", "slots", "Slots of the state pool, padding left out."),
    _gauge("state_free_slots", "slots", "Slots that nobody owns."),
    _gauge("state_working_slots", "slots", "Slots that hold working states of running requests."),
    _gauge("state_checkpoint_slots", "slots", "Slots that hold checkpoints of the prefix cache."),
    _gauge("state_evictable_slots", "slots", "Checkpoints that eviction could free now."),
    _counter("evictions", "", "Rows or slots evicted, by pool and reason.", "pool", "reason"),
    _counter("steps", "steps", "Forward steps planned."),
    _counter("prompt_tokens", "tokens", "Prompt tokens of admitted requests."),
    _counter("cached_tokens", "tokens", "Prompt tokens that came from the prefix cache."),
    _counter("computed_tokens", "tokens", "Tokens that went through the model, repeats included."),
    _counter("generation_tokens", "tokens", "Tokens sampled."),
    _counter(
        "state_missed_tokens",
        "tokens",
        "Prompt tokens whose KV was cached but useless for want of a checkpoint.",
    ),
    _counter("retractions", "requests", "Running requests sent back to the queue."),
    _counter(
        "skipped_checkpoints",
        "slots",
        "Checkpoints that found no slot, or none worth evicting for.",
    ),
    _counter(
        "thrashed_tokens", "tokens", "Prompt tokens computed again soon after they were evicted."
    ),
    _counter("moved_rows", "rows", "KV rows moved to make room for states."),
    _gauge("longest_wait_seconds", "seconds", "Longest wait for admission since start."),
    _counter("requests_finished", "requests", "Requests that ended, by finish reason.", "reason"),
    _counter("http_responses", "", "HTTP responses, by route and status.", "route", "status"),
    _seconds("time_to_first_token_seconds", "From arrival to the first token.", _WAIT_S),
    _seconds("time_per_output_token_seconds", "Mean time per token after the first.", _TOKEN_S),
    _seconds("e2e_request_latency_seconds", "From arrival to the last token.", _WHOLE_S),
    _seconds("queue_time_seconds", "From arrival at the engine to the first step.", _WAIT_S),
)
BY_KEY: dict[str, Metric] = {metric.key: metric for metric in METRICS}
