"""The Mooncake reader: one session per request, global ids, a partial last block with an id."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from twinpool.errors import TraceError
from twinpool.traces.mooncake import read_mooncake


def request(**fields: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": 513, "output_length": 7, "hash_ids": [3, 9]} | fields


def write(path: Path, *lines: dict[str, object] | str) -> Path:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n")
    return path


def test_a_request_is_a_session_of_one_turn_at_its_time(tmp_path: Path) -> None:
    trace = read_mooncake(write(tmp_path / "m.jsonl", request(timestamp=2500), request()))
    first, second = trace.sessions
    assert (first.start_s, second.start_s, trace.has_times) == (2.5, 0.0, True)
    assert (first.namespace, first.block_tokens, len(first.turns)) == ("", 512, 1)
    turn = first.turns[0]
    assert turn.blocks.tolist() == [3, 9]
    assert (turn.input_tokens, turn.output_tokens, turn.answer) == (513, 7, None)
    assert first.name != second.name


def test_xz_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl.xz"
    path.write_bytes(lzma.compress(json.dumps(request()).encode()))
    assert len(read_mooncake(path).sessions) == 1


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("[]", "not a request"),
        (json.dumps(request(hash_ids=[3])), "1 block ids, 2 expected for 513 tokens in blocks"),
        (json.dumps(request(hash_ids=[3, 4, 5])), "3 block ids, 2 expected"),
        (json.dumps(request(hash_ids=[3, -4])), "outside 32 bits"),
        (json.dumps(request(hash_ids=[3, 2**31])), "outside 32 bits"),
        (json.dumps(request(timestamp=-1)), "timestamp"),
        ('{"timestamp": 1e999, "input_length": 0, "output_length": 0, "hash_ids": []}', "range"),
        (json.dumps(request(output_length=-1)), "output_length"),
        (json.dumps({"timestamp": 0}), "missing required field `input_length`"),
    ],
)
def test_faults_name_the_file_and_the_line(tmp_path: Path, bad: str, named: str) -> None:
    path = write(tmp_path / "m.jsonl", request(), bad)
    with pytest.raises(TraceError, match=named) as error:
        read_mooncake(path)
    assert error.value.line == 2
    assert str(path) in str(error.value)
