"""The Qwen-Bailian reader: chats become sessions, hashes of blocks become numbers of prefixes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinpool.errors import TraceError
from twinpool.traces.bailian import read_bailian


def chat(chat_id: int, parent: int = -1, at: float = 0.0, ids: tuple[int, ...] = (1,)) -> dict:
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": at,
        "input_length": 16 * len(ids),
        "output_length": 3,
        "type": "text",
        "turn": 1,
        "hash_ids": list(ids),
    }


def write(path: Path, *lines: dict) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_turns_of_one_conversation_are_one_session_by_time(tmp_path: Path) -> None:
    lines = [chat(5, at=1.0), chat(9, at=2.0), chat(7, 6, at=9.5), chat(6, 5, at=4.0)]
    trace = read_bailian(write(tmp_path / "b.jsonl", *lines))
    assert [(each.name, each.start_s) for each in trace.sessions] == [("5", 1.0), ("9", 2.0)]
    turns = trace.sessions[0].turns
    assert [(turn.start_s, turn.think_s) for turn in turns] == [(0.0, 0.0), (3.0, 3.0), (8.5, 5.5)]
    assert not any(turn.is_think_recorded for turn in turns)


def test_chats_whose_parent_came_before_the_trace_keep_together(tmp_path: Path) -> None:
    lines = [chat(5, 2, at=1.0), chat(6, 2, at=2.0), chat(7, 3, at=3.0)]
    trace = read_bailian(write(tmp_path / "b.jsonl", *lines))
    assert [(each.name, len(each.turns)) for each in trace.sessions] == [("2", 2), ("3", 1)]


def test_equal_blocks_after_different_ones_get_different_numbers(tmp_path: Path) -> None:
    lines = [chat(1, ids=(4, 8, 8)), chat(2, ids=(5, 8)), chat(3, ids=(4, 8, 9))]
    trace = read_bailian(write(tmp_path / "b.jsonl", *lines))
    blocks = [session.turns[0].blocks.tolist() for session in trace.sessions]
    assert blocks == [[0, 1, 2], [3, 4], [0, 1, 5]]


def test_a_partial_last_block_may_have_an_id_or_none(tmp_path: Path) -> None:
    lines = [
        chat(1, ids=(4, 8)) | {"input_length": 17},
        chat(2, ids=(4,)) | {"input_length": 17},
    ]
    trace = read_bailian(write(tmp_path / "b.jsonl", *lines))
    assert [len(session.turns[0].blocks) for session in trace.sessions] == [2, 1]


@pytest.mark.parametrize(
    ("bad", "line", "named"),
    [
        ([chat(2, 1), chat(2, 1)], 2, "chat_id 2 is also on line 1"),
        ([chat(2, 3), chat(3, 2)], 1, "chat_id 2 is among its own parents"),
        ([chat(2, 2)], 1, "chat_id 2 is among its own parents"),
        ([chat(1), chat(2) | {"input_length": 40}], 2, "1 block ids, 2 or 3 expected"),
        ([chat(1), {"chat_id": 2}], 2, "parent_chat_id"),
    ],
)
def test_faults_name_the_file_and_the_line(
    tmp_path: Path, bad: list[dict], line: int, named: str
) -> None:
    path = write(tmp_path / "b.jsonl", *bad)
    with pytest.raises(TraceError, match=named) as error:
        read_bailian(path)
    assert error.value.line == line
    assert str(path) in str(error.value)


def test_a_conversation_of_thousands_of_turns_is_followed(tmp_path: Path) -> None:
    lines = [chat(number, number - 1, at=float(number)) for number in range(3000)]
    trace = read_bailian(write(tmp_path / "b.jsonl", *reversed(lines)))
    (session,) = trace.sessions
    assert (session.name, len(session.turns)) == ("0", 3000)
