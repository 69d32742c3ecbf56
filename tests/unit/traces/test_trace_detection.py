"""The format of a trace is found from its first line; an unknown one is told with its fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinpool.errors import ConfigError, TraceError
from twinpool.traces.lines import MAX_LINE_BYTES, read_lines
from twinpool.traces.read import FORMATS, detect, read_trace
from twinpool.traces.tokens import TextOptions

DATA = Path(__file__).parents[2] / "data"
FIRST_LINES = {
    "twinpool": {"twinpool_trace": 9},
    "agentx": {"id": "a", "block_size": 64, "requests": []},
    "mooncake": {"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []},
    "bailian": {
        "chat_id": 1,
        "parent_chat_id": -1,
        "timestamp": 1,
        "input_length": 0,
        "output_length": 1,
        "hash_ids": [],
    },
    "lmcache": {"timestamp": 1, "input": "a", "output": "b", "session_id": "c"},
    "openai": {"messages": []},
}


@pytest.mark.parametrize("name", FIRST_LINES)
def test_a_first_line_tells_its_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"\n{json.dumps(FIRST_LINES[name])}\n")
    assert detect(path).name == name


def test_every_format_has_a_first_line_here() -> None:
    assert {each.name for each in FORMATS} == set(FIRST_LINES)


@pytest.mark.parametrize("line", [{"body": {}}, {"prompt": "a"}])
def test_batch_lines_and_prompts_are_openai(tmp_path: Path, line: dict) -> None:
    (tmp_path / "trace.jsonl").write_text(json.dumps(line))
    assert detect(tmp_path / "trace.jsonl").name == "openai"


def test_folders_and_archives_tell_by_their_first_file(tmp_path: Path) -> None:
    assert detect(DATA / "traces" / "taubench_3.tar.xz").name == "lmcache"
    (tmp_path / "a.json").write_text(json.dumps(FIRST_LINES["agentx"], indent=2))
    assert detect(tmp_path).name == "agentx"
    (tmp_path / "Z.jsonl").write_text(json.dumps(FIRST_LINES["lmcache"]))
    assert detect(tmp_path).name == "lmcache"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"timestamp": 1, "tokens": 5}', "its fields: timestamp, tokens"),
        ("[1, 2]", "its fields: no JSON object"),
        ("timestamp,tokens", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("", "the file is empty"),
    ],
)
def test_what_is_not_known_is_told(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=named) as error:
        read_trace(path)
    if text:
        assert "hash_ids+input_length" in error.value.hint
        assert "--format" in error.value.hint


def test_a_missing_file_and_an_empty_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match=r"no \.json and no \.jsonl"):
        read_trace(tmp_path)


def test_a_format_that_is_named_is_not_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(FIRST_LINES["mooncake"]))
    with pytest.raises(TraceError, match="not a session"):
        read_trace(path, format="agentx")
    with pytest.raises(ConfigError, match="no trace format 'csv'"):
        read_trace(path, format="csv")


def test_text_options_without_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(FIRST_LINES["mooncake"]))
    with pytest.raises(ConfigError, match="mooncake, which holds no text"):
        read_trace(path, text=TextOptions(as_bytes=True))


def test_a_line_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LINE_BYTES >= 2**20
    monkeypatch.setattr("twinpool.traces.lines.MAX_LINE_BYTES", 10)
    path = tmp_path / "trace.jsonl"
    path.write_text('{"a": 1}\n{"a": 12345}\n')
    lines = read_lines(path)
    assert next(lines) == (1, b'{"a": 1}\n')
    with pytest.raises(TraceError, match="longer than 10 bytes") as error:
        next(lines)
    assert error.value.line == 2
