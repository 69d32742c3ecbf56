"""`twinpool trace`: reports, stable JSON, converted and generated files, errors with hints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run
from twinpool.cli.output import ExitCode
from twinpool.cli.trace_options import parse_capacities, parse_tokens
from twinpool.cli.trace_report import format_capacity
from twinpool.errors import ConfigError
from twinpool.traces.read import read_trace

DATA = Path(__file__).parents[2] / "data" / "traces"
AGENTS = str(DATA / "agentx_subagents.jsonl.gz")
TEXT = str(DATA / "taubench_3.tar.xz")
KEYS = (
    "trace",
    "format",
    "block_tokens",
    "has_times",
    "requests",
    "sessions",
    "child_sessions",
    "duration_s",
    "input_tokens",
    "output_tokens",
    "unique_tokens",
    "turns",
    "context_tokens",
    "prompt_tokens",
    "answer_tokens",
    "gap_s",
    "think_s",
    "turn_pairs",
    "rewritten_pairs",
    "hit_tokens",
    "hit_rate",
    "lru",
    "lru_enough_tokens",
)


def ok(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert run(["trace", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr()


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(["trace", *arguments])
    out, err = capsys.readouterr()
    assert code != 0
    assert out == ""
    assert "Traceback" not in err
    return code, err


def test_info_prints_the_report_on_stdout_and_the_format_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, err = ok(capsys, "info", AGENTS, "--lru", "64k,1M")
    assert err == f"{AGENTS}: format agentx\n"
    assert "sessions       2 and 5 that they started" in out
    assert "infinite prefix cache: hit rate 0.9334, 8,396,096 of 8,995,395 prompt tokens" in out
    assert "one session after the other" in out
    assert out.splitlines()[-1].split()[:2] == ["1M", "1,048,576"]
    assert ok(capsys, "info", AGENTS, "--format", "agentx")[1] == ""


def test_info_as_json_has_its_keys_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = json.loads(ok(capsys, "info", AGENTS, "--json")[0])
    assert tuple(document) == KEYS
    capacities = [row["capacity_tokens"] for row in document["lru"]]
    assert capacities == [2**14, 2**16, 2**18, 2**20, 2**22, 2**24]
    assert document["lru"][-1]["hit_tokens"] == document["hit_tokens"]
    assert set(document["turns"]) == {"p50", "p90", "max"}


def test_text_needs_a_way_to_count_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    code, err = failed(capsys, "info", TEXT)
    assert code == ExitCode.USAGE
    assert "--tokenizer FILE" in err
    assert "--bytes" in err
    document = json.loads(ok(capsys, "info", TEXT, "--bytes", "--block-tokens", "4", "--json")[0])
    assert (document["block_tokens"], document["think_s"]) == (4, None)


def test_a_converted_trace_has_the_same_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "t.jsonl.gz"
    out, err = ok(capsys, "convert", AGENTS, "-o", str(target))
    assert out == ""
    assert f"{target}: 2 of 2 sessions, 135 of 135 requests" in err
    before, after = (
        json.loads(ok(capsys, "info", str(path), "--json")[0]) for path in (AGENTS, target)
    )
    assert after.pop("format") == "twinpool"
    assert before.pop("format") == "agentx"
    assert {**before, "trace": ""} == {**after, "trace": ""}


def test_a_part_is_converted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "t.jsonl"
    part = ("--sessions", "1", "--max-turns", "3", "--no-subagents")
    _, err = ok(capsys, "convert", AGENTS, "-o", str(target), *part)
    assert "1 of 2 sessions, 3 of 135 requests" in err
    (session,) = read_trace(target).sessions
    assert (len(session.turns), session.children) == (3, ())


def test_nothing_left_is_an_error_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "t.jsonl"
    _, err = failed(capsys, "convert", AGENTS, "-o", str(target), "--min-turns", "9999")
    assert "nothing is left of the 2 sessions" in err
    assert not target.exists()


@pytest.mark.parametrize("kind", ["agents", "chat", "burst", "shared-prompt"])
def test_every_kind_is_made_and_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    size = ("--requests", "20") if kind in ("burst", "shared-prompt") else ("--sessions", "3")
    first, second, other = (tmp_path / f"{name}.jsonl" for name in "abc")
    ok(capsys, "make", kind, "-o", str(first), "--seed", "4", *size)
    ok(capsys, "make", kind, "-o", str(second), "--seed", "4", *size)
    ok(capsys, "make", kind, "-o", str(other), "--seed", "5", *size)
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
    trace = read_trace(first)
    assert (len(trace.sessions), trace.has_times) == (int(size[1]), True)


def test_help_names_every_parameter_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ok(capsys, "make", "agents", "--help")
    for flag in ("--seed", "--sessions", "--think-s", "--rewrite-chance", "--max-context"):
        assert flag in out
    assert "[default: 0.018]" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("info", "none.jsonl"), ("none.jsonl: cannot be read",)),
        (("info", AGENTS, "--format", "csv"), ("no trace format 'csv'", "mooncake")),
        (("info", AGENTS, "--lru", "64k,,1M"), ("--lru", "'' is not a number of tokens", "64k")),
        (("info", AGENTS, "--bytes"), ("agentx, which holds no text",)),
        (("info", TEXT, "--bytes", "--tokenizer", "t.json"), ("both given", "choose one")),
        (("info", TEXT, "--tokenizer", "none.json"), ("none.json cannot be loaded",)),
        (("info", TEXT, "--bytes", "--block-tokens", "0"), ("--block-tokens", "out of range")),
        (("convert", AGENTS), ("Missing option '-o'",)),
        (("convert", AGENTS, "-o", "none/t.jsonl"), ("none/t.jsonl: cannot be written",)),
        (("make", "agents", "-o", "t", "--max-context", "9"), ("--max-context is 9",)),
        (("make", "agents", "-o", "t", "--rate", "x"), ("--rate", "'x' is not a number")),
        (("make", "chat", "-o", "t", "--seed", "-1"), ("--seed", "out of range")),
    ],
)
def test_errors_say_what_to_change(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    _, err = failed(capsys, *arguments)
    assert err.startswith("error: ") or "\nerror: " in err
    for words in says:
        assert words in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "tokens"), [("1", 1), ("64k", 2**16), ("1M", 2**20), ("2g", 2**31), ("65537", 65537)]
)
def test_token_counts_are_read_and_printed(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens
    assert parse_tokens(format_capacity(tokens)) == tokens


@pytest.mark.parametrize("text", ["", "0", "0k", "k", "-1", "1.5k", "1kk", "٣", "9" * 13])
def test_what_is_no_token_count_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_capacities(text)
