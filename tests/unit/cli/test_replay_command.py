"""`twinpool replay` and `sweep`: promised keys, repeatable bytes, clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run
from twinpool.cli.output import ExitCode
from twinpool.settings.engines import ENGINES

CONFIG = str(Path(__file__).parents[2] / "data" / "configs" / "Qwen--Qwen3.5-35B-A3B.json")
MEMORY = ("--model", CONFIG, "--memory-after-weights", "8GiB")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "agents.jsonl"
    assert run(["trace", "make", "agents", "-o", str(path), "--seed", "3", "--sessions", "6"]) == 0
    return str(path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run([*arguments]) in (ExitCode.FAILED, ExitCode.USAGE)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    return captured.err


def test_replay_prints_the_promised_keys(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "replay", trace, *MEMORY, "--lanes", "3", "--gap-cap", "5")
    assert {"hit_rate", "output_tokens_per_s", "ttft_s", "requests"} <= set(found)
    assert found["requests"] > 20
    assert found["refused"] == 0
    assert 0 < found["hit_rate"] <= found["reusable_rate"] < 1
    assert found["cost"]["prefill_tokens_per_s"]["source"] == "assumed"
    assert found["pools"]["memory_after_weights"] == 8 * 2**30


def test_replay_says_the_same_as_text(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("replay", trace, *MEMORY, "--lanes", "3")
    found = document(capsys, *flags)
    assert run([*flags]) == 0
    text = capsys.readouterr().out
    assert f"{found['hit_rate']:.3f}" in text
    assert f"{found['requests']:,}" in text
    assert f"{found['cached_tokens']:,}" in text


@pytest.mark.parametrize("engine", ENGINES)
def test_two_replays_are_the_same_bytes(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    outputs = []
    for name in ("a", "b"):
        log = tmp_path / name
        found = document(
            capsys,
            *("replay", trace, *MEMORY, "--lanes", "4", "--engine", engine, "--audit"),
            *("--decision-log", str(log)),
        )
        outputs.append((log.read_bytes(), json.dumps(found)))
    assert outputs[0] == outputs[1]
    assert outputs[0][0].count(b"\n") > 50


def test_a_replay_is_elastic_unless_a_split_is_given(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("replay", trace, *MEMORY, "--lanes", "2", "--duration", "100")
    elastic = document(capsys, *flags)
    assert elastic["policies"]["memory_mode"] == "elastic"
    assert elastic["policies"]["radix_eviction_policy"] == "value"
    assert elastic["policies"]["schedule_policy"] == "least-work"
    static = document(capsys, *flags, "--max-mamba-cache-size", "30")
    assert static["policies"]["memory_mode"] == "static"
    assert static["pools"]["state_slots"] == 30
    # Either kind could take nearly all of the memory.
    sizes = elastic["pools"]
    assert sizes["state_slots"] > 2 * static["pools"]["state_slots"]
    assert sizes["kv_tokens"] > static["pools"]["kv_tokens"]
    assert run([*flags]) == 0
    text = capsys.readouterr().out
    assert f"{sizes['kv_tokens']:,} tokens" in text
    assert "rows and states share memory" in text


def test_a_seed_moves_the_lanes(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("replay", trace, *MEMORY, "--lanes", "3", "--duration", "200")
    one, other = (document(capsys, *flags, "--seed", seed) for seed in ("1", "2"))
    assert one["prompt_tokens"] != other["prompt_tokens"]


def test_a_lanes_file_fixes_sessions_and_turns(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = json.loads(Path(trace).read_text().splitlines()[1])["session"]
    lanes = tmp_path / "lanes.tsv"
    lanes.write_text(f"session\tturn\n{name}\t1\n")
    found = document(
        capsys, "replay", trace, *MEMORY, "--lanes-file", str(lanes), "--duration", "1"
    )
    assert found["loop"] == "1 lanes"


@pytest.mark.parametrize("engine", ENGINES)
def test_bound_exceeds_what_was_reached(
    trace: str, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    flags = ("--lanes", "4", "--engine", engine, "--bound")
    found = document(capsys, "replay", trace, *MEMORY, *flags)
    bound = found["bound"]
    assert 0 < found["hit_rate"] <= bound["hit_rate"] <= 1
    assert bound["hit_rate"] <= bound["one_budget_hit_rate"] + 1e-9
    is_shared = engine in ("twinpool", "vllm", "marconi")
    assert (bound["hit_rate"] == bound["one_budget_hit_rate"]) == is_shared


@pytest.mark.parametrize(
    "flags",
    [
        ("--engine", "vllm"),
        ("--memory", "one-budget", "--mamba-radix-cache-strategy", "extra_buffer"),
    ],
)
def test_one_memory_refuses_what_could_never_start(
    trace: str, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    tight = ("--model", CONFIG, "--memory-after-weights", "3GiB", "--lanes", "4")
    found = document(capsys, "replay", trace, *tight, *flags)
    assert found["refused"] > 0
    assert found["hit_rate"] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("no-such-file", *MEMORY), ("no-such-file",)),
        (("TRACE", *MEMORY, "--lanes", "99"), ("99 lanes", "6")),
        (("TRACE", *MEMORY, "--lanes-file", "none.tsv"), ("none.tsv",)),
        (("TRACE", *MEMORY, "--min-turns", "9999"), ("9999 turns", "--min-turns")),
        (("TRACE", *MEMORY, "--unit-tokens", "7"), ("units of 7 tokens", "divisor")),
        (("TRACE", *MEMORY, "--eviction", "random"), ("'random'", "joint-lru")),
        (("TRACE", *MEMORY, "--memory", "rubber"), ("--memory", "'rubber'", "elastic")),
        (
            ("TRACE", *MEMORY, "--memory", "elastic", "--max-mamba-cache-size", "9"),
            ("--memory elastic has no split", "--max-mamba-cache-size"),
        ),
        (("TRACE", *MEMORY, "--recorded-steps"), ("has no step", "--record")),
        (("TRACE", *MEMORY, "--prefill-rate", "0"), ("--prefill-rate",)),
        (("TRACE", *MEMORY, "--gpu", "cpu"), ("cpu",)),
        (
            ("TRACE", *MEMORY, "--eviction", "lru", "--radix-eviction-policy", "lru"),
            ("--radix-eviction-policy and --eviction are the same",),
        ),
    ],
)
def test_bad_input_of_replay_is_one_clear_error(
    trace: str,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    expected: tuple[str, ...],
) -> None:
    text = fails(capsys, "replay", *(trace if a == "TRACE" else a for a in arguments))
    for part in expected:
        assert part in text


def test_sweep_marks_the_best_split_and_writes_a_page(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    flags = ("sweep", trace, *MEMORY, "--lanes", "4", "--processes", "1", "--bound")
    found = document(capsys, *flags, "--cells", "4", "--rounds", "1", "-o", str(page))
    cells = found["cells"]
    best = cells[found["best"]]
    assert best["output_tokens_per_s"] == max(cell["output_tokens_per_s"] for cell in cells)
    assert found["recommended"]["state_slots"] in [cell["state_slots"] for cell in cells]
    flags_of = found["recommended"]["flags"]
    assert str(found["recommended"]["state_slots"]) in flags_of["twinpool"]
    # `direct` was replayed, and that engine has no such thing.
    assert flags_of["sglang"] == ""
    assert best["hit_rate"] <= found["bound"]["hit_rate"]
    assert len({cell["state_slots"] for cell in cells}) == len(cells) > 4
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    forms = (f"{best['hit_rate']:.3f}", f"{best['hit_rate']:.1%}", f"{best['hit_rate']:.3f}"[1:])
    assert any(form in html for form in forms)


def test_sweep_compares_engines_with_and_without_a_split(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("sweep", trace, *MEMORY, "--lanes", "4", "--processes", "1")
    found = document(capsys, *flags, "--slots", "20,40", "--engines", "sglang,vllm")
    by_engine = [(cell["engine"], cell["state_slots"]) for cell in found["cells"]]
    assert by_engine == [("sglang", 20), ("sglang", 40), ("vllm", None)]
    assert found["cells"][found["best"]]["engine"] == "sglang"
    assert not [note for note in found["notes"] if "memory is static" in note]


def test_sweep_holds_elastic_memory_against_the_splits_of_the_same_policies(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("sweep", trace, *MEMORY, "--lanes", "4", "--processes", "1", "--slots", "20,40")
    found = document(capsys, *flags, "--engines", "twinpool-static,twinpool")
    shown = [
        (cell["engine"], cell["state_slots"], cell["memory"], cell["order"], cell["eviction"])
        for cell in found["cells"]
    ]
    assert shown == [
        ("twinpool-static", 20, "static", "least-work", "value"),
        ("twinpool-static", 40, "static", "least-work", "value"),
        ("twinpool", None, "elastic", "least-work", "value"),
    ]
    assert found["recommended"]["policies"] == {
        "engine": "twinpool-static",
        "mamba_radix_cache_strategy": "direct",
        "radix_eviction_policy": "value",
        "schedule_policy": "least-work",
    }


def test_sweep_of_splits_assumes_static_memory_and_says_so(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("sweep", trace, *MEMORY, "--lanes", "2", "--duration", "100", "--processes", "1")
    found = document(capsys, *flags, "--slots", "20")
    assert [cell["memory"] for cell in found["cells"]] == ["static"]
    assert any(note.startswith("memory is static") for note in found["notes"])
    given = document(capsys, *flags, "--slots", "20", "--memory", "static")
    assert {**given, "notes": found["notes"]} == found
    assert not [note for note in given["notes"] if note.startswith("memory is static")]


def test_sweep_in_processes_gives_the_same_cells(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("sweep", trace, *MEMORY, "--lanes", "2", "--duration", "300", "--slots", "12,30")
    alone = document(capsys, *flags, "--processes", "1")
    side_by_side = document(capsys, *flags, "--processes", "2")
    assert alone == side_by_side


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--slots", "0"), ("'0'", "429,300,192")),
        (("--slots", "10,,20"), ("empty entry",)),
        (("--slots", "999999"), ("no split can run", "999999")),
        (("--strategies", "direct,eager"), ("'eager'",)),
        (("--engines", "vllm"), ("share one memory", "twinpool-static")),
        (("--engine", "twinpool"), ("share one memory", "twinpool-static")),
        (("--memory", "elastic"), ("share one memory", "twinpool-static")),
        (("--executor", "ray"), ("Ray", "pip install ray")),
        (("--strategies", "direct", "--mamba-radix-cache-strategy", "direct"), ("--strategies",)),
    ],
)
def test_bad_input_of_sweep_is_one_clear_error(
    trace: str,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    expected: tuple[str, ...],
) -> None:
    text = fails(capsys, "sweep", trace, *MEMORY, "--lanes", "2", "--processes", "1", *arguments)
    for part in expected:
        assert part in text
