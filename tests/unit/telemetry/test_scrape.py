"""Prometheus text of three engines becomes one record: ranks once, replicas added, gaps left."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinpool.errors import ConfigError
from twinpool.telemetry.scrape import COUNTERS, NAMES, EngineReading, read_metrics, since
from twinpool.telemetry.table import METRICS, PREFIX

TESTS = Path(__file__).parents[2]
METRIC_FILES = TESTS / "data" / "metrics"


def read(name: str) -> EngineReading:
    return read_metrics((METRIC_FILES / name).read_text())


def test_our_own_exposition_is_read_whole() -> None:
    reading = read_metrics((TESTS / "golden" / "metrics.txt").read_text())
    assert reading.engine == "twinpool"
    assert (reading.running, reading.queued, reading.max_running) == (3, 2, 6)
    assert (reading.kv_capacity, reading.kv_evictable, reading.kv_free) == (100, 20, 40)
    assert reading.kv_held == 40
    assert (reading.state_held, reading.state_usage) == (6, 0.5)
    assert (reading.evicted_rows, reading.evicted_slots) == (10, 0)
    assert (reading.prompt_tokens, reading.cached_tokens, reading.missed_tokens) == (1000, 600, 30)


def test_every_name_of_ours_is_in_the_metric_table() -> None:
    known = {metric.name.removeprefix(PREFIX) for metric in METRICS}
    assert {name for source in NAMES["twinpool"].values() for name in source.names} <= known


def test_fields_of_all_engines_are_fields_of_the_record() -> None:
    fields = set(EngineReading.__slots__)
    assert all(names.keys() <= fields for names in NAMES.values())
    assert set(COUNTERS) <= fields


def test_what_a_person_flushed_was_not_evicted_for_want_of_room() -> None:
    lines = [
        "twinpool:prompt_tokens_total 900",
        'twinpool:evictions_total{pool="kv",reason="flush"} 58.0',
        'twinpool:evictions_total{pool="kv",reason="rows"} 2.0',
        'twinpool:evictions_total{pool="state",reason="rolling"} 5.0',
    ]
    reading = read_metrics("\n".join(lines) + "\n")
    assert (reading.evicted_rows, reading.evicted_slots) == (2, 0)


def test_evictions_that_have_not_come_up_are_none_yet_and_not_unknown() -> None:
    reading = read_metrics("twinpool:prompt_tokens_total 5\n")
    assert (reading.evicted_rows, reading.evicted_slots) == (0, 0)


def test_ranks_repeat_one_engine_and_sources_of_hits_add_up() -> None:
    reading = read("sglang_states_short.txt")
    assert (reading.engine, reading.replicas) == ("sglang", 1)
    assert (reading.running, reading.queued) == (85, 40)
    assert (reading.state_held, reading.state_evictable, reading.state_free) == (350, 70, 9)
    assert reading.state_capacity == 429
    assert reading.kv_capacity == 5890560
    assert (reading.prompt_tokens, reading.cached_tokens) == (9000000, 8000000)
    assert reading.evicted_slots is None


def test_occupancy_is_that_of_rows_and_not_the_largest_of_all_pools() -> None:
    reading = read("sglang_states_short.txt")
    assert reading.kv_usage == pytest.approx(0.1358)
    assert reading.sources["kv_usage"] == "sglang:full_token_usage"


def test_replicas_add_up_and_fractions_are_their_mean() -> None:
    reading = read("vllm.txt")
    assert (reading.engine, reading.replicas) == ("vllm", 2)
    assert (reading.running, reading.queued, reading.retractions) == (22, 5, 7)
    assert reading.kv_usage == pytest.approx(0.96)
    assert (reading.prompt_tokens, reading.cached_tokens) == (1000000, 800000)
    assert reading.state_usage is None


def test_names_that_were_given_up_are_read_after_the_newer_ones() -> None:
    old = "vllm:gpu_cache_usage_perc 0.5\n"
    assert read_metrics(old).kv_usage == 0.5
    assert read_metrics(old + "vllm:kv_cache_usage_perc 0.75\n").kv_usage == 0.75


def test_names_whose_colon_a_scraper_replaced_are_read() -> None:
    assert read_metrics("sglang_num_queue_reqs 3\n").queued == 3


def test_a_queue_split_by_priority_is_counted_once() -> None:
    text = (
        'sglang:num_queue_reqs{priority=""} 5\n'
        'sglang:num_queue_reqs{priority="0"} 3\n'
        'sglang:num_queue_reqs{priority="1"} 2\n'
    )
    assert read_metrics(text).queued == 5


def test_values_that_are_no_numbers_are_left_out() -> None:
    reading = read_metrics("sglang:num_queue_reqs 3\nsglang:cache_hit_rate NaN\n")
    assert (reading.queued, reading.hit_rate) == (3, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 samples, and none of them is a metric of a serving engine"),
        ("node_load1 0.5\n", "1 samples, and none"),
        ("<html>\n", "not Prometheus text"),
        ("sglang:num_queue_reqs many\n", "not Prometheus text"),
        ("sglang:num_queue_reqs 1\nvllm:num_requests_waiting 1\n", "2 engines in one text"),
        (
            'vllm:num_requests_waiting{model_name="a"} 1\n'
            'vllm:num_requests_waiting{model_name="b"} 1\n',
            "2 models in one text: a, b",
        ),
    ],
)
def test_what_is_no_text_of_one_engine_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_metrics(text)
    assert caught.value.hint


def test_two_readings_give_the_counters_between_them() -> None:
    earlier = read_metrics(
        "twinpool:prompt_tokens_total 100\ntwinpool:cached_tokens_total 90\n"
        "twinpool:num_queue_reqs 9\n"
    )
    later = read_metrics(
        "twinpool:prompt_tokens_total 300\ntwinpool:cached_tokens_total 100\n"
        "twinpool:num_queue_reqs 1\n"
    )
    between = since(earlier, later)
    assert (between.prompt_tokens, between.cached_tokens, between.queued) == (200, 10, 1)


def test_readings_in_the_wrong_order_are_refused() -> None:
    earlier = read_metrics("twinpool:prompt_tokens_total 100\n")
    later = read_metrics("twinpool:prompt_tokens_total 300\n")
    with pytest.raises(ConfigError, match="prompt_tokens fell from 300 to 100"):
        since(later, earlier)
    with pytest.raises(ConfigError, match="first metrics are of twinpool, the second of vllm"):
        since(earlier, read("vllm.txt"))
