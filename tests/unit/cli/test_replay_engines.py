"""`twinpool replay --engine`: every engine runs on the same bytes, and flags beat its preset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run
from twinpool.settings.engines import ENGINES

CONFIG = str(Path(__file__).parents[2] / "data" / "configs" / "Qwen--Qwen3.5-35B-A3B.json")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "agents.jsonl"
    assert run(["trace", "make", "agents", "-o", str(path), "--seed", "5", "--sessions", "4"]) == 0
    return str(path)


def replayed(trace: str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    capsys.readouterr()
    command = ["replay", trace, "--model", CONFIG, "--memory-after-weights", "6GiB", "--lanes", "3"]
    assert run([*command, "--gap-cap", "2", "--json", *flags]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_replays_with_its_books_in_order(
    engine: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replayed(trace, capsys, "--engine", engine, "--audit")
    assert found["requests"] > 10
    assert found["unfinished"] == found["refused"] == 0
    assert 0 < found["hit_rate"] <= found["reusable_rate"] < 1


def test_a_flag_beats_the_preset(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--engine", "vllm", "--memory", "static", "--eviction", "lru", "--page-size", "16")
    policies = replayed(trace, capsys, *flags)["policies"]
    assert policies["memory_mode"] == "static"
    assert policies["radix_eviction_policy"] == "lru"
    assert policies["mamba_radix_cache_strategy"] == "align"


def test_one_memory_has_room_for_more_of_either_kind_than_a_split(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    split = replayed(trace, capsys, "--engine", "sglang")["pools"]
    for engine in ("vllm", "marconi"):
        shared = replayed(trace, capsys, "--engine", engine)["pools"]
        assert shared["memory_after_weights"] == split["memory_after_weights"]
        assert shared["state_slots"] > split["state_slots"]
        assert shared["kv_tokens"] > split["kv_tokens"]


def test_an_unknown_engine_is_a_usage_error(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", trace, "--model", CONFIG, "--engine", "tgi"]) == 2
    assert "sglang-lpm" in capsys.readouterr().err
