"""The AgentX reader: both forms of block ids, subagents, and faults that name file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from twinpool.errors import TraceError
from twinpool.traces.agentx import read_agentx, read_sessions


def request(ids, *, tokens: int | None = None, **fields) -> dict:
    blocks = sum(ids[1::2]) if fields.pop("run_length", True) else len(ids)
    return {"t": 0.0, "type": "n", "in": tokens or blocks * 64, "out": 9, "hash_ids": ids} | fields


def write(path: Path, *sessions: dict | str) -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in sessions]
    path.write_text("\n".join(lines) + "\n")
    return path


def session(*requests: dict, **fields) -> dict:
    return {"id": "s", "block_size": 64, "requests": list(requests)} | fields


def nested(depth: int) -> dict:
    made = request([1, 1])
    for _ in range(depth):
        made = {"t": 0.0, "type": "subagent", "requests": [made]}
    return session(made)


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
    turns = [
        request([1, 1], t=3.0, think_time=1.5, out=7),
        request([1, 2], t=9.0, think_time=0.0),
    ]
    (read,) = read_sessions(write(tmp_path / "a.jsonl", session(*turns)), is_run_length=True)
    assert [(t.start_s, t.think_s, t.output_tokens) for t in read.turns] == [(3, 1.5, 7), (9, 0, 9)]
    assert all(turn.is_think_recorded for turn in read.turns)


def test_a_pause_that_is_not_recorded_is_what_is_left_of_the_gap(tmp_path):
    turns = [request([1, 1], t=3.0, api_time=2.5), request([1, 2], t=9.0), request([1, 2], t=11.0)]
    (read,) = read_sessions(write(tmp_path / "a.jsonl", session(*turns)))
    assert [turn.think_s for turn in read.turns] == [0.0, 3.5, 2.0]
    assert not any(turn.is_think_recorded for turn in read.turns)


def test_subagents_become_children_and_not_turns(tmp_path):
    child = {"t": 1.0, "type": "subagent", "agent_id": "x", "requests": [request([9, 1])]}
    path = write(tmp_path / "a.jsonl", session(request([1, 1]), child))
    (read,) = read_sessions(path, is_run_length=True)
    assert len(read.turns) == 1
    assert [(c.name, len(c.turns)) for c in read.children] == [("s/x", 1)]
    assert read.children[0].start_s == 1.0


def test_ids_are_local_to_a_session_with_its_subagents(tmp_path):
    child = {"t": 1.0, "type": "subagent", "agent_id": "x", "requests": [request([9, 1])]}
    first = session(request([1, 1]), child, child)
    second = session(request([1, 1]), id="z", hash_id_scope="global")
    here, there = read_sessions(write(tmp_path / "a.jsonl", first, second))
    assert {each.namespace for each in here.walk()} == {"s"}
    assert [each.name for each in here.walk()] == ["s", "s/x", "s/x~2"]
    assert there.namespace == ""


def test_both_forms_are_told_apart_line_by_line_unseen(tmp_path):
    # One id of one block is [7] plain and [7, 1] in pairs; two ids of two blocks are both.
    plain = [
        session(request([3, 2], tokens=128)),
        session(request([5, 3, 100], run_length=False), id="b"),
    ]
    pairs = [session(request([3, 2], tokens=128)), session(request([5, 3]), id="b")]
    read = list(read_sessions(write(tmp_path / "plain.jsonl", *plain)))
    assert [each.turns[0].blocks.tolist() for each in read] == [[3, 2], [5, 3, 100]]
    read = list(read_sessions(write(tmp_path / "pairs.jsonl", *pairs)))
    assert [each.turns[0].blocks.tolist() for each in read] == [[3, 4], [5, 6, 7]]
    (read,) = read_sessions(write(tmp_path / "either.jsonl", plain[0]))
    assert read.turns[0].blocks.tolist() == [3, 2]


def test_a_folder_of_raw_files_is_read_in_the_order_of_names(tmp_path):
    for name, ids in (("b", [1, 2]), ("a", [7, 8, 9])):
        text = json.dumps(session(request(ids, run_length=False), id=name), indent=1)
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "rates.txt").write_text("not a session")
    trace = read_agentx(tmp_path)
    assert [each.name for each in trace.sessions] == ["a", "b"]
    assert trace.sessions[0].turns[0].blocks.tolist() == [7, 8, 9]
    assert (trace.format, trace.has_times) == ("agentx", False)


def test_a_prompt_that_the_next_goes_on_with_is_held_once(tmp_path):
    turns = [request([1, 4]), request([1, 9]), request([5, 3])]
    (read,) = read_sessions(write(tmp_path / "a.jsonl", session(*turns)))
    first, second, third = (turn.blocks for turn in read.turns)
    assert np.shares_memory(first, second)
    assert not np.shares_memory(second, third)
    assert first.tolist() == [1, 2, 3, 4]
    assert not any(turn.blocks.flags.writeable for turn in read.turns)


def test_gzip_is_read_and_empty_lines_are_passed_over(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    line = json.dumps(session(request([1, 1])))
    other = json.dumps(session(request([1, 1]), id="other"))
    path.write_bytes(gzip.compress(f"{line}\n\n{other}\n".encode()))
    assert len(list(read_sessions(path, is_run_length=True))) == 2


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("{", "not a session"),
        ('{"id": "s"}', "not a session"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "not a session"),
        (json.dumps(session(request([1, 1]), block_size=0)), r"`int` >= 1 - at `\$.block_size`"),
        (json.dumps(session(request([1, 1], tokens=640))), "1 block ids, 10 expected for 640"),
        (json.dumps(session(request([1, 0]))), "not pairs"),
        (json.dumps(session(request([1, 2, 3], tokens=128))), "not pairs"),
        (json.dumps(session(request([2**31, 1]))), "outside 32 bits"),
        (json.dumps(session(request([2**31 - 1, 2]))), "outside 32 bits"),
        (json.dumps(session(request([-5, 2]))), "outside 32 bits"),
        (json.dumps(session(request([2**70, 1]))), "outside 32 bits"),
        # A short line that claims more than any memory holds is refused before it is spelled out.
        (json.dumps(session(request([1, 10**15], tokens=64))), "1000000000000000 block ids"),
        (json.dumps(session(request([1, 10**12]))), r"`int` <= 67108864 - at `\$.requests"),
        (json.dumps(session(request([1, 1], type="x"))), "unknown type 'x'"),
        (json.dumps(session(request([1, 1], out=None))), "lacks `in` or `out`"),
        (json.dumps(session(request([1, 1], t=-1.0))), r"`float` >= 0.0 - at `\$.requests"),
        (json.dumps(session(request([1, 1]), hash_id_scope="tenant")), "not local or global"),
        (json.dumps(session(request([1, 1]), id="s0")), "'s0' is there twice"),
        (json.dumps(nested(40)), "more than 32 deep"),
    ],
)
def test_faults_name_the_file_and_the_line(tmp_path, bad, named):
    path = write(tmp_path / "a.jsonl", session(request([1, 1]), id="s0"), bad)
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
