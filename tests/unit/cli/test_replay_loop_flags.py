"""Flags of replay and sweep are used or refused: none is passed over, none makes a run endless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run

MODEL = ("--model", "GLM-5.3-Flash", "--tp", "2", "--kv-cache-dtype", "fp8")
MEMORY = (*MODEL, "--memory-after-weights", "2GiB")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "agents.jsonl"
    sizes = ("--system-tokens", "512", "--task-tokens", "300", "--max-context", "9000")
    sizes += ("--result-tokens", "200", "--answer-tokens", "150")
    turns = ("--sessions", "5", "--turns", "5", "--max-turns", "8", "--think-s", "3")
    assert run(["trace", "make", "agents", "-o", str(path), *sizes, *turns]) == 0
    return str(path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--recycle",), ("--recycle is for lanes", "--lanes N")),
        (("--seed", "0"), ("--seed is for lanes",)),
        (("--gap-cap", "0"), ("--gap-cap is for lanes",)),
        (("--lanes", "2", "--recycle"), ("for ever", "--duration")),
        (("--lanes", "2", "--subagents"), ("--subagents is for the open loop",)),
        (("--lanes-file", "FILE", "--seed", "1"), ("--lanes-file", "--seed")),
        (("--lanes-file", "FILE", "--lanes", "2"), ("--lanes is 2", "names 1")),
        (("--duration", "0"), ("--duration is 0",)),
        (
            ("--gpu", "H200", "--decode-base-ms", "5"),
            ("--decode-base-ms and --decode-per-request-ms", "both"),
        ),
        (
            ("--prefill-rate", "1", "--decode-base-ms", "0", "--decode-per-request-ms", "0"),
            ("no time", "raise --decode-base-ms"),
        ),
    ],
)
def test_a_flag_without_effect_or_end_is_refused(
    trace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    expected: tuple[str, ...],
) -> None:
    lanes = tmp_path / "lanes.tsv"
    lanes.write_text("session\tturn\nagents-0\t0\n")
    given = [str(lanes) if flag == "FILE" else flag for flag in flags]
    assert run(["replay", trace, *MEMORY, *given]) == 2
    text = capsys.readouterr().err
    for part in expected:
        assert part in text


def test_a_rate_that_is_given_replaces_its_half_of_the_prediction(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("replay", trace, *MEMORY, "--gpu", "H200")
    cost = document(capsys, *flags)["cost"]
    faster = document(capsys, *flags, "--prefill-rate", "1000")["cost"]
    assert faster["prefill_tokens_per_s"] == {"value": 1000.0, "source": "flag", "why": ""}
    assert {n: c for n, c in faster.items() if n != "prefill_tokens_per_s"} == {
        n: c for n, c in cost.items() if n != "prefill_tokens_per_s"
    }
    decode = ("--decode-base-ms", "7", "--decode-per-request-ms", "1")
    given = document(capsys, *flags, *decode)["cost"]
    assert given["decode_base_s"]["value"] == 0.007
    assert given["prefill_tokens_per_s"] == cost["prefill_tokens_per_s"]
    assert "bandwidth_efficiency" not in given


def test_samples_are_spread_over_the_run_whatever_its_length(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "replay", trace, *MEMORY, "--lanes", "3", "--timeline", "10")
    times = [sample["time_s"] for sample in found["timeline"]]
    assert 5 <= len(times) <= 11
    assert times[-1] > found["duration_s"] / 2


def test_chunks_are_not_said_to_be_without_effect(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "replay", trace, *MEMORY, "--chunked-prefill-size", "512")
    assert found["policies"]["chunked_prefill_size"] == 512
    assert not [note for note in found["notes"] if "chunked_prefill_size" in note]


def test_the_flags_of_a_sweep_have_the_policies_that_were_replayed(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("sweep", trace, *MEMORY, "--lanes", "3", "--processes", "1", "--slots", "12")
    lpm = ("--schedule-policy", "lpm", "--eviction", "lru", "--mamba-max-states-per-path", "2")
    found = document(capsys, *flags, *lpm)["recommended"]
    for engine in ("sglang", "twinpool"):
        assert "--schedule-policy lpm" in found["flags"][engine]
        assert "--mamba-max-states-per-path 2" in found["flags"][engine]
    assert "--radix-eviction-policy lru" in found["flags"]["twinpool"]
    assert "eviction" not in found["flags"]["sglang"]
    own = document(capsys, *flags)["recommended"]
    assert "no order by least-work and no eviction by value" in own["flag_notes"]["sglang"]
    assert "--schedule-policy" not in own["flags"]["sglang"]
    assert "--schedule-policy" not in own["flags"]["twinpool"]
    assert "eviction" not in own["flags"]["twinpool"]
    old = ("--eviction", "joint-lru", "--schedule-policy", "fcfs")
    joint = document(capsys, *flags, *old)["recommended"]
    assert "there is no eviction by joint-lru" in joint["flag_notes"]["sglang"]
    assert "--schedule-policy" not in joint["flags"]["sglang"]
    assert "--schedule-policy fcfs" in joint["flags"]["twinpool"]
    assert "--radix-eviction-policy joint-lru" in joint["flags"]["twinpool"]
    assert joint["policies"]["schedule_policy"] == "fcfs"
    assert joint["policies"]["radix_eviction_policy"] == "joint-lru"


def test_a_sweep_finds_splits_where_the_one_of_the_flags_cannot_run(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = ("--memory-after-weights", "1GiB", "--lanes", "3", "--processes", "1")
    assert run(["replay", trace, *MODEL, *tight[:4], "--memory", "static"]) == 1
    assert "one request reserves 4" in capsys.readouterr().err
    found = document(capsys, "sweep", trace, *MODEL, *tight, "--cells", "3", "--rounds", "0")
    assert found["recommended"]["state_slots"] >= 4
    assert [cell for cell in found["cells"] if cell["error"] is None]


def test_a_split_that_refuses_requests_says_so(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--lanes", "3", "--processes", "1", "--slots", "12,28")
    assert run(["sweep", trace, *MEMORY, *flags]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if " 28 " in line)
    assert "requests never fit" in line
