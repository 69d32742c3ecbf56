"""The metric table is well-formed: what it says can be exposed as it stands."""

from __future__ import annotations

import re

from twinpool.telemetry.table import METRICS, MetricKind

UNITS = {"", "requests", "rows", "slots", "tokens", "seconds", "steps"}


def test_names_are_unique_and_legal_for_prometheus() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"twinpool:[a-z][a-z0-9_]*", name) for name in names)


def test_counters_alone_end_in_total() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)


def test_every_metric_has_one_sentence_of_help_and_a_known_unit() -> None:
    for metric in METRICS:
        assert metric.help.endswith(".")
        assert metric.help[0].isupper() or metric.help[0].isdigit()
        assert metric.unit in UNITS


def test_a_unit_in_a_name_is_the_unit_of_the_row() -> None:
    for metric in METRICS:
        suffix = metric.key.rpartition("_")[2]
        if suffix in UNITS:
            assert metric.unit == suffix


def test_only_histograms_have_buckets_and_they_rise() -> None:
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))
