"""Counts what only the front sees: request latencies, HTTP answers.

Plain numbers in plain objects; knows no engine, no HTTP library and no exposition format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from twinpool.telemetry.table import BY_KEY


class Histogram:
    """Observations in buckets.

    Args:
        bounds: Upper bounds, rising; a last bucket without bound is implied.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add one observation; a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def sum(self) -> float:
        """Sum of all observations."""
        return self._sum

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return `(upper bound, observations up to it)` in the form that Prometheus wants."""
        total = 0
        rows: list[tuple[str, float]] = []
        names = [*(str(bound) for bound in self._bounds), "+Inf"]
        for name, count in zip(names, self._counts, strict=True):
            total += count
            rows.append((name, float(total)))
        return rows


class Recorder:
    """What the front has seen since it started."""

    def __init__(self) -> None:
        self.histograms = {
            key: Histogram(metric.buckets) for key, metric in BY_KEY.items() if metric.buckets
        }
        self.responses: Counter[tuple[str, int]] = Counter()

    def first_token(self, seconds: float) -> None:
        """Note the time from arrival to a request's first token."""
        self.histograms["time_to_first_token_seconds"].observe(seconds)

    def queued(self, seconds: float) -> None:
        """Note the time from arrival at the engine to a request's first step."""
        self.histograms["queue_time_seconds"].observe(seconds)

    def finished(self, *, total_s: float, after_first_s: float, num_tokens: int) -> None:
        """Note a request that ran to its end.

        Args:
            total_s: From arrival to the last token.
            after_first_s: From the first token to the last.
            num_tokens: Output tokens.
        """
        self.histograms["e2e_request_latency_seconds"].observe(total_s)
        if num_tokens > 1:
            per_token_s = after_first_s / (num_tokens - 1)
            self.histograms["time_per_output_token_seconds"].observe(per_token_s)

    def responded(self, route: str, status: int) -> None:
        """Note an HTTP answer; `route` is a path of the table, never one that a client made up."""
        self.responses[route, status] += 1
