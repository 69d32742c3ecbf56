"""The exposition's names, types and labels: what scrapers and dashboards hold on to."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from twinpool.scheduling.events import PoolSnapshot, Snapshot
from twinpool.telemetry.exposition import CONTENT_TYPE, render
from twinpool.telemetry.recorder import Recorder
from twinpool.telemetry.table import METRICS, MetricKind

GOLDEN = Path(__file__).with_name("metrics.txt")


def _snapshot() -> Snapshot:
    return Snapshot(
        kv=PoolSnapshot(
            capacity=100,
            free=40,
            working=35,
            cached=25,
            evictable=20,
            evictions={"rows": 7, "dead": 3},
        ),
        state=PoolSnapshot(
            capacity=12, free=4, working=3, cached=5, evictable=2, evictions={"path_cap": 1}
        ),
        num_running=3,
        num_waiting=2,
        max_running_requests=6,
        num_steps=50,
        prompt_tokens=1000,
        cached_tokens=600,
        computed_tokens=500,
        output_tokens=90,
        state_missed_tokens=30,
        retractions=4,
        skipped_checkpoints=5,
        thrashed_tokens=7,
        moved_rows=6,
        longest_wait_s=2.5,
        finished={"stop": 8, "length": 2},
    )


def _recorder() -> Recorder:
    recorder = Recorder()
    recorder.first_token(0.02)
    recorder.queued(0.004)
    recorder.finished(total_s=0.3, after_first_s=0.28, num_tokens=8)
    recorder.responded("/v1/completions", 200)
    recorder.responded("/health", 503)
    return recorder


def test_the_exposition_is_the_golden_one() -> None:
    text = render(_recorder(), _snapshot(), is_up=True, num_restarts=1).decode()
    assert text == GOLDEN.read_text()


def test_every_row_of_the_table_is_exposed_with_its_type() -> None:
    text = render(_recorder(), _snapshot(), is_up=True, num_restarts=1).decode()
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.kind.value}\n" in text


def test_a_parser_of_the_format_reads_the_numbers_back() -> None:
    text = render(_recorder(), _snapshot(), is_up=False, num_restarts=0).decode()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["twinpool:engine_up", ()] == 0
    assert samples["twinpool:kv_free_rows", ()] == 40
    assert samples["twinpool:evictions_total", (("pool", "kv"), ("reason", "dead"))] == 3
    assert samples["twinpool:requests_finished_total", (("reason", "stop"),)] == 8
    assert samples["twinpool:time_to_first_token_seconds_count", ()] == 1


def test_without_a_snapshot_only_the_fronts_own_metrics_are_there() -> None:
    text = render(Recorder(), None, is_up=False, num_restarts=0).decode()
    assert "twinpool:engine_up 0.0" in text
    assert "twinpool:kv_free_rows" not in text
    assert all(
        f"# TYPE {m.name} histogram" in text for m in METRICS if m.kind is MetricKind.HISTOGRAM
    )


def test_the_content_type_names_the_old_text_format() -> None:
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
