"""The two ways to run out are told apart, with the numbers and the rule of every sign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from twinpool.telemetry.diagnosis import Known, Verdict, diagnose
from twinpool.telemetry.scrape import EngineReading, read_metrics

METRIC_FILES = Path(__file__).parents[2] / "data" / "metrics"

# An engine with room everywhere, whose prompts are mostly cached.
CALM = EngineReading(
    engine="twinpool",
    running=4,
    queued=0,
    max_running=8,
    kv_capacity=1000,
    kv_held=300,
    kv_evictable=300,
    kv_free=400,
    kv_usage=0.3,
    state_capacity=100,
    state_held=30,
    state_evictable=20,
    state_free=50,
    state_usage=0.3,
    prompt_tokens=100000,
    cached_tokens=90000,
    missed_tokens=0,
    evicted_rows=0,
    evicted_slots=0,
)


def verdict(**changes: float | str | None) -> Verdict:
    return diagnose(replace(CALM, **changes)).verdict  # type: ignore[arg-type]


def test_an_engine_with_room_is_neither() -> None:
    found = diagnose(CALM)
    assert (found.verdict, found.pool, found.unknown) == (Verdict.NEITHER, "", ())
    assert all(sign.holds is False for sign in found.signs)


def test_a_full_state_pool_with_a_queue_is_concurrency_bound() -> None:
    found = diagnose(replace(CALM, queued=3, state_usage=0.85))
    assert (found.verdict, found.pool) == (Verdict.CONCURRENCY, "state")
    assert "--mamba-full-memory-ratio" in found.advice[0]


def test_a_full_kv_pool_with_a_queue_is_concurrency_bound_the_other_way() -> None:
    found = diagnose(replace(CALM, queued=3, kv_usage=0.95))
    assert (found.verdict, found.pool) == (Verdict.CONCURRENCY, "kv")


def test_no_split_helps_when_both_pools_are_held() -> None:
    assert diagnose(replace(CALM, queued=3, kv_usage=0.95, state_usage=0.9)).pool == "both"
    assert diagnose(replace(CALM, queued=3, kv_usage=0.75, state_usage=0.9)).pool == "both"


def test_a_queue_before_an_idle_engine_is_neither() -> None:
    assert verdict(queued=3) is Verdict.NEITHER


def test_full_pools_without_a_queue_are_no_lack_of_concurrency() -> None:
    assert verdict(state_usage=0.95, kv_usage=0.95) is Verdict.NEITHER


@pytest.mark.parametrize(
    ("binds", "pool"), [("state", "state"), ("kv", "kv"), ("asked", "cap"), ("", "")]
)
def test_at_the_cap_the_log_says_which_pool_set_it(binds: str, pool: str) -> None:
    reading = replace(CALM, queued=3, running=8, max_running=None)
    found = diagnose(reading, Known(cap=8, cap_binds=binds))
    assert (found.verdict, found.pool) == (Verdict.CONCURRENCY, pool)
    assert found.advice


def test_few_hits_and_evictions_are_residency_bound() -> None:
    assert verdict(cached_tokens=10000, evicted_rows=50) is Verdict.RESIDENCY
    assert verdict(cached_tokens=10000) is Verdict.NEITHER
    assert verdict(evicted_rows=50) is Verdict.NEITHER


def test_kv_without_its_checkpoint_is_residency_bound_by_states() -> None:
    found = diagnose(replace(CALM, missed_tokens=6000))
    assert (found.verdict, found.pool) == (Verdict.RESIDENCY, "state")


@pytest.mark.parametrize("pool", ["state", "kv"])
def test_the_pool_that_is_full_of_cached_things_is_named(pool: str) -> None:
    capacity = getattr(CALM, f"{pool}_capacity")
    full = {f"{pool}_free": 0, f"{pool}_evictable": capacity * 0.7}
    found = diagnose(replace(CALM, cached_tokens=10000, **full))
    assert (found.verdict, found.pool) == (Verdict.RESIDENCY, pool)


def test_both_ways_at_once_are_said() -> None:
    assert verdict(queued=3, state_usage=0.9, missed_tokens=6000) is Verdict.BOTH


def test_what_is_missing_is_named_and_never_guessed() -> None:
    found = diagnose(EngineReading(engine="sglang", queued=3, running=5))
    assert found.verdict is Verdict.UNKNOWN
    assert any("cap in force missing" in line for line in found.unknown)
    assert any("occupancy missing" in line for line in found.unknown)


def test_no_evicted_rows_say_nothing_of_checkpoints() -> None:
    reading = replace(CALM, engine="sglang", cached_tokens=10000, evicted_slots=None)
    assert diagnose(reading).verdict is Verdict.UNKNOWN


def test_every_sign_carries_its_numbers_and_its_rule() -> None:
    for sign in diagnose(CALM).signs:
        assert sign.rule
        assert any(letter.isdigit() for letter in sign.numbers), sign


@pytest.mark.parametrize(
    ("name", "expected", "pool"),
    [
        ("sglang_states_short.txt", Verdict.CONCURRENCY, "state"),
        ("sglang_sessions_lost.txt", Verdict.RESIDENCY, "kv"),
        ("vllm.txt", Verdict.CONCURRENCY, "blocks"),
    ],
)
def test_recorded_texts_come_out_as_they_should(name: str, expected: Verdict, pool: str) -> None:
    found = diagnose(read_metrics((METRIC_FILES / name).read_text()))
    assert (found.verdict, found.pool) == (expected, pool)


def test_fresh_prompts_are_not_taken_for_lost_sessions_without_a_word() -> None:
    found = diagnose(read_metrics((METRIC_FILES / "sglang_sessions_lost.txt").read_text()))
    assert any("whether prompts come back at all" in line for line in found.unknown)


def test_a_hit_rate_of_few_prompts_says_nothing_yet() -> None:
    early = replace(CALM, prompt_tokens=85, cached_tokens=10, evicted_rows=58, evicted_slots=5)
    assert diagnose(early).verdict is not Verdict.RESIDENCY
