"""What the recorder counts is what was observed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinpool.telemetry.recorder import Histogram, Recorder


def test_an_observation_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.sum == pytest.approx(14.0)


@given(st.lists(st.floats(0.0, 100.0), max_size=50))
def test_cumulative_counts_equal_a_plain_count(values: list[float]) -> None:
    bounds = (0.1, 1.0, 10.0, 50.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    naive = [float(sum(value <= bound for value in values)) for bound in bounds]
    assert [count for _, count in histogram.cumulative()] == [*naive, float(len(values))]
    assert histogram.count == len(values)


def test_time_per_token_leaves_the_first_token_out() -> None:
    recorder = Recorder()
    recorder.finished(total_s=3.0, after_first_s=2.0, num_tokens=5)
    recorder.finished(total_s=1.0, after_first_s=0.0, num_tokens=1)
    per_token = recorder.histograms["time_per_output_token_seconds"]
    assert (per_token.count, per_token.sum) == (1, 0.5)
    assert recorder.histograms["e2e_request_latency_seconds"].count == 2


def test_responses_are_counted_by_route_and_status() -> None:
    recorder = Recorder()
    recorder.responded("/health", 200)
    recorder.responded("/health", 200)
    recorder.responded("/health", 503)
    assert recorder.responses == {("/health", 200): 2, ("/health", 503): 1}
