"""The AgentX reader: both forms of block ids, subagents, and faults that name file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from twinpool.errors import TraceError
from twinpool.traces.agentx import read_sessions


def request(ids, *, tokens: int | None = None, **fields) -> dict:
    blocks = sum(ids[1::2]) if fields.pop("run_length", True) else len(ids)
    return {"t": 0.0, "type": "n", "in": tokens or blocks * 64, "out": 9, "hash_ids": ids} | fields


def write(path: Path, *sessions: dict | str) -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in sessions]
    path.write_text("\n".join(lines) + "\n")
    return path


def session(*requests: dict, **fields) -> dict:
    return {"id": "s", "block_size": 64, "requests": list(requests)} | fields


def test_run_length_ids_are_spelled_out(tmp_path):
    path = write(tmp_path / "a.jsonl", session(request([5, 3, 100, 1, 7, 2])))
    (read,) = read_sessions(path, is_run_length=True)
    assert read.turns[0].blocks.tolist() == [5, 6, 7, 100, 7, 8]
    assert read.turns[0].blocks.dtype == "int32"
    assert (read.name, read.block_tokens) == ("s", 64)


def test_plain_ids_are_taken_as_they_are(tmp_path):
    path = write(tmp_path / "a.jsonl", session(request([5, 3, 100], run_length=False)))
    (read,) = read_sessions(path, is_run_length=False)
    assert read.turns[0].blocks.tolist() == [5, 3, 100]


def test_a_partial_last_block_has_no_id(tmp_path):
    path = write(tmp_path / "a.jsonl", session(request([1, 2], tokens=2 * 64 + 63)))
    (read,) = read_sessions(path, is_run_length=True)
    assert len(read.turns[0].blocks) == 2
    assert read.turns[0].input_tokens == 191


def test_a_turn_may_have_no_full_block(tmp_path):
    path = write(tmp_path / "a.jsonl", session(request([], tokens=10)))
    (read,) = read_sessions(path, is_run_length=True)
    assert len(read.turns[0].blocks) == 0


def test_turns_keep_their_order_and_times(tmp_path):
    turns = [request([1, 1], t=3.0, think_time=1.5, out=7), request([1, 2], t=9.0)]
    (read,) = read_sessions(write(tmp_path / "a.jsonl", session(*turns)), is_run_length=True)
    assert [(t.start_s, t.think_s, t.output_tokens) for t in read.turns] == [(3, 1.5, 7), (9, 0, 9)]


def test_subagents_become_children_and_not_turns(tmp_path):
    child = {"t": 1.0, "type": "subagent", "agent_id": "x", "requests": [request([9, 1])]}
    path = write(tmp_path / "a.jsonl", session(request([1, 1]), child))
    (read,) = read_sessions(path, is_run_length=True)
    assert len(read.turns) == 1
    assert [(c.name, len(c.turns)) for c in read.children] == [("s/x", 1)]


def test_gzip_is_read_and_empty_lines_are_passed_over(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    line = json.dumps(session(request([1, 1])))
    path.write_bytes(gzip.compress(f"{line}\n\n{line}\n".encode()))
    assert len(list(read_sessions(path, is_run_length=True))) == 2


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("{", "not a session"),
        ('{"id": "s"}', "not a session"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "not a session"),
        (json.dumps(session(request([1, 1]), block_size=0)), "block_size is 0"),
        (json.dumps(session(request([1, 1], tokens=640))), "1 blocks of 64 for 640 tokens"),
        (json.dumps(session(request([1, 0]))), "not pairs"),
        (json.dumps(session(request([1, 2, 3], tokens=128))), "not pairs"),
        (json.dumps(session(request([2**31, 1]))), "outside 32 bits"),
        (json.dumps(session(request([-5, 2]))), "outside 32 bits"),
        (json.dumps(session(request([2**70, 1]))), "outside 32 bits"),
        (json.dumps(session(request([2**63 - 1, 2]))), "outside 32 bits"),
        # A short line that claims more than any memory holds is refused before it is spelled out.
        (json.dumps(session(request([1, 10**15], tokens=64))), "1000000000000000 blocks"),
    ],
)
def test_faults_name_the_file_and_the_line(tmp_path, bad, named):
    path = write(tmp_path / "a.jsonl", session(request([1, 1])), bad)
    with pytest.raises(TraceError, match=named) as error:
        list(read_sessions(path, is_run_length=True))
    assert error.value.line == 2
    assert str(path) in str(error.value)


def test_a_missing_file_and_a_cut_gzip_are_told(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_sessions(tmp_path / "none.jsonl", is_run_length=True))
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n" * 1000)[:-20])
    with pytest.raises(TraceError):
        list(read_sessions(path, is_run_length=True))
