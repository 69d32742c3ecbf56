"""The own format: what is written, what is refused, and nothing of a token in the file."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from twinpool.errors import TraceError
from twinpool.traces.own_format import TraceWriter, write_trace
from twinpool.traces.own_reader import read_own
from twinpool.traces.schema import Session, Trace, Turn

HEADER = {"twinpool_trace": 1, "block_tokens": 4, "has_times": True}


def turn(blocks: list[int], **fields: object) -> Turn:
    values = {
        "start_s": 0.0,
        "think_s": 0.0,
        "blocks": np.array(blocks, dtype=np.int32),
        "input_tokens": 4 * len(blocks),
        "output_tokens": 3,
    } | fields
    return Turn(**values)  # type: ignore[arg-type]


def session(name: str, *turns: Turn, **fields: object) -> Session:
    return Session(name=name, block_tokens=4, turns=turns, **fields)  # type: ignore[arg-type]


def written(*sessions: Session, path: Path) -> list[dict]:
    write_trace(Trace(name="t", format="x", sessions=sessions, has_times=True), path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def asked(name: str = "a", turn: int = 0, ids: tuple[int, ...] = (0, 2), **fields: object) -> dict:
    line = {"session": name, "turn": turn, "t": 0.0, "in": 8, "out": 3, "ids": list(ids)}
    return line | fields


def test_ids_are_numbers_of_prefixes_in_order_of_appearance(tmp_path: Path) -> None:
    lines = written(
        session("a", turn([70, 80, 90]), turn([70, 80, 60, 90])),
        session("b", turn([80]), namespace="other"),
        path=tmp_path / "t.jsonl",
    )
    assert lines[0] == HEADER
    assert [line["ids"] for line in lines[1:]] == [[0, 3], [0, 2, 3, 2], [0, 1]]


def test_what_holds_for_a_session_stands_on_its_first_line_only(tmp_path: Path) -> None:
    lines = written(
        session("a", turn([1]), turn([1]), start_s=2.5, namespace="n"), path=tmp_path / "t.jsonl"
    )
    assert (lines[1]["start"], lines[1]["namespace"]) == (2.5, "n")
    assert not {"start", "namespace", "parent"} & set(lines[2])


def test_no_token_can_be_read_from_the_file() -> None:
    tokens = np.array([70001, 70002, 70003, 70004, 70005, 70006, 70007, 70001], dtype=np.int32)
    stream = io.BytesIO()
    writer = TraceWriter(stream, block_tokens=2)
    writer.open_session("a")
    writer.write_tokens("a", turn([], input_tokens=5, output_tokens=3), tokens)
    writer.write_tokens("a", turn([], input_tokens=8, output_tokens=0, step=17), tokens.copy())
    text = stream.getvalue().decode()
    assert "7000" not in text
    first, second = (json.loads(line) for line in text.splitlines()[1:])
    assert (first["ids"], first["answer"]) == ([0, 2], [2, 2])
    assert (second["ids"], second["answer"], second["step"]) == ([0, 4], [], 17)


def test_sessions_may_be_interleaved_and_have_no_request(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        HEADER,
        {"session": "root", "start": 1.0},
        asked("b", start=2.0),
        asked("c", parent="root", start=0.5, namespace="n"),
        asked("b", 1, t=3.0, think=1.5),
    )
    root, other = read_own(path).sessions
    assert (root.name, root.turns, root.start_s) == ("root", (), 1.0)
    assert [(c.name, c.start_s, c.namespace) for c in root.children] == [("c", 0.5, "n")]
    assert [t.think_s for t in other.turns] == [0.0, 1.5]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_the_same_trace_gives_the_same_bytes_and_no_rest(tmp_path: Path, suffix: str) -> None:
    trace = Trace(name="t", format="x", sessions=(session("a", turn([1, 2])),), has_times=False)
    paths = [tmp_path / f"{name}.jsonl{suffix}" for name in "ab"]
    for path in paths:
        write_trace(trace, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == paths
    assert not read_own(paths[0]).has_times


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    twice = session("a", turn([1]), children=(session("a", turn([2])),))
    with pytest.raises(TraceError, match="two sessions are called 'a'"):
        written(twice, path=tmp_path / "t.jsonl")
    with pytest.raises(TraceError, match="cannot be written"):
        written(session("a", turn([1])), path=tmp_path / "none" / "t.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ({"twinpool_trace": 2, "block_tokens": 4, "has_times": True}, "version 2 of the format"),
        ({"twinpool_trace": 1, "block_tokens": 0, "has_times": True}, "block_tokens"),
        ({"twinpool_trace": 1, "has_times": True}, "block_tokens"),
        ({"twinpool_trace": 1, "block_tokens": 4, "has_times": True, "x": 1}, "unknown field `x`"),
        ({}, "twinpool_trace"),
    ],
)
def test_a_header_that_is_not_known_is_refused(tmp_path: Path, header: dict, named: str) -> None:
    with pytest.raises(TraceError, match=named) as error:
        read_own(write(tmp_path / "t.jsonl", header))
    assert error.value.line == 1


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (asked("a", 2), "turn 2 of 'a', 1 expected"),
        (asked("a", 0), "turn 0 of 'a', 1 expected"),
        ({"session": "a"}, "second line without `turn`"),
        (asked("a", 1, start=9.0), "began with another `start_s`"),
        (asked("a", 1, namespace="x"), "began with another `namespace`"),
        (asked("b", parent="z"), "parent 'z' has no line before"),
        (asked("b", parent="b"), "parent 'b' has no line before"),
        (asked("a", 1, ids=(0, 3)), "3 block ids, 2 expected"),
        (asked("a", 1, ids=(0,)), "not pairs"),
        (asked("a", 1, ids=(0, 0)), "not pairs"),
        (asked("a", 1, ids=(2**31 - 1, 2)), "outside 32 bits"),
        (asked("a", 1, ids=(0, 10**15)), "1000000000000000 block ids"),
        (asked("a", 1, answer=[2, 4]), "4 block ids, 0 or 1 expected"),
        (asked("a", 1, unknown=3), "unknown field `unknown`"),
        (asked("a", 1, step=-1), "step"),
        ({"session": "a", "turn": 1, "t": 0.0}, "needs `t`, `in`, `out` and `ids`"),
    ],
)
def test_faults_name_the_file_and_the_line(tmp_path: Path, bad: dict, named: str) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, asked(), bad)
    with pytest.raises(TraceError, match=named) as error:
        read_own(path)
    assert error.value.line == 3


def test_sessions_within_sessions_end_somewhere(tmp_path: Path) -> None:
    lines = [asked("s0"), *(asked(f"s{n}", parent=f"s{n - 1}") for n in range(1, 40))]
    with pytest.raises(TraceError, match="more than 32 deep"):
        read_own(write(tmp_path / "t.jsonl", HEADER, *lines))
