"""Readers of recorded text: tokens by bytes or by a tokenizer file, sessions, answers, faults."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from twinpool.errors import ConfigError, TraceError
from twinpool.traces.lmcache import read_lmcache
from twinpool.traces.openai import read_openai
from twinpool.traces.tokens import ByteEncoder, FileEncoder, TextOptions, encoder_of

DATA = Path(__file__).parents[2] / "data" / "traces"
BYTES = TextOptions(as_bytes=True, block_tokens=2)


def write(path: Path, *lines: object) -> Path:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n")
    return path


def asked(session: str, at_us: int, text: str, answer: str = "") -> dict[str, object]:
    return {"timestamp": at_us, "input": text, "output": answer, "session_id": session}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A tokenizer file that knows the words a to d."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2, "c": 3, "d": 4}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_bytes_count_four_to_a_token_and_keep_beginnings() -> None:
    encoder = ByteEncoder()
    prompt, answer = encoder.split("abcdef", "ghij")
    assert (len(prompt), len(answer)) == (1, 2)
    longer, nothing = encoder.split("abcdefghij", "")
    assert [*prompt, *answer] == longer.tolist()
    assert (len(longer), len(nothing)) == (3, 0)
    assert len(encoder.split("ä€😀", "")[0]) == 3


def test_the_last_short_token_is_no_full_one() -> None:
    encoder = ByteEncoder()
    seen = {int(encoder.split(text, "")[0][-1]) for text in ("ab", "ab\0", "ab\0\0", "ab\0\0b")}
    assert len(seen) == 4


def test_a_tokenizer_file_makes_the_tokens(words: Path) -> None:
    prompt, answer = FileEncoder(words).split("a b c", "d z")
    assert (prompt.tolist(), answer.tolist()) == ([1, 2, 3], [4, 0])


def test_without_a_way_to_count_tokens_nothing_is_assumed(tmp_path: Path) -> None:
    path = write(tmp_path / "l.jsonl", asked("s", 1, "text"))
    with pytest.raises(ConfigError, match="holds text") as error:
        read_lmcache(path, TextOptions())
    assert "--tokenizer FILE" in error.value.hint
    assert "--bytes" in error.value.hint


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_tokenizer_that_cannot_be_loaded_is_told(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        encoder_of(TextOptions(tokenizer=path))


@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer": Path("t.json"), "as_bytes": True},
        {"block_tokens": 0},
        {"output_tokens": -1},
    ],
)
def test_text_options_that_cannot_be_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError):
        TextOptions(**options)


def test_lmcache_turns_are_sorted_and_share_their_blocks(tmp_path: Path) -> None:
    path = write(
        tmp_path / "l.jsonl",
        asked("s", 1_760_000_005_500_000, "aaaabbbbccccdddd" + "eeee" * 4, "x"),
        asked("t", 1_760_000_002_000_000, "aaaabbbbCCCC"),
        asked("s", 1_760_000_001_000_001, "aaaabbbbcccc", "ddddeeee"),
    )
    trace = read_lmcache(path, BYTES)
    first, second = trace.sessions
    assert [(each.name, each.start_s) for each in trace.sessions] == [("s", 0.0), ("t", 0.999999)]
    early, late = first.turns
    assert (early.start_s, late.start_s, late.think_s) == (0.0, 4.499999, 4.499999)
    assert (early.input_tokens, early.output_tokens, late.output_tokens) == (3, 2, 1)
    assert early.answer is not None
    assert late.blocks.tolist()[:2] == [*early.blocks.tolist(), *early.answer.tolist()][:2]
    assert second.turns[0].blocks.tolist() == early.blocks.tolist()[:1]


def test_an_archive_and_a_folder_of_the_same_files_are_the_same(tmp_path: Path) -> None:
    archive = DATA / "taubench_3.tar.xz"
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    options = TextOptions(as_bytes=True)
    packed_trace, trace = (read_lmcache(p, options) for p in (archive, tmp_path / "taubench"))
    assert len(trace.sessions) == 3
    for one, other in zip(packed_trace.sessions, trace.sessions, strict=True):
        assert one.name == other.name
        assert [t.blocks.tolist() for t in one.turns] == [t.blocks.tolist() for t in other.turns]


def test_an_archive_with_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("notes.txt")
        entry.size = 2
        archive.addfile(entry, io.BytesIO(b"hi"))
    with pytest.raises(TraceError, match=r"l\.tar:notes\.txt: no \.jsonl file"):
        read_lmcache(path, BYTES)
    path.write_bytes(b"no archive at all")
    with pytest.raises(TraceError, match="cannot be read"):
        read_lmcache(path, BYTES)


def test_an_lmcache_fault_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "l.jsonl", asked("s", 1, "a"), {"timestamp": 1, "input": "b"})
    with pytest.raises(TraceError, match="missing required field") as error:
        read_lmcache(path, BYTES)
    assert error.value.line == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TraceError, match=r"no \.jsonl file in the folder"):
        read_lmcache(empty, BYTES)


def said(*texts: str, **fields: object) -> dict[str, object]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"messages": messages, "max_tokens": 5} | fields


def test_requests_that_repeat_all_messages_of_one_before_go_on_with_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "o.jsonl",
        said("hello there"),
        said("other"),
        said("hello there", "hi", "and now?"),
        said("hello there", "no", "another way"),
        said("hello there", "hi", "and now?", "so", "then"),
        said("other"),
    )
    trace = read_openai(path, BYTES)
    names = [(each.name, len(each.turns)) for each in trace.sessions]
    assert names == [("line 1", 3), ("line 2", 1), ("line 4", 1), ("line 6", 1)]
    first, second, third = (turn.blocks.tolist() for turn in trace.sessions[0].turns)
    assert second[: len(first) - 1] == first[:-1]
    assert third[: len(second) - 1] == second[:-1]
    assert not trace.has_times


def test_a_recorded_answer_is_part_of_the_next_prompt(tmp_path: Path) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "four score " * 9}}]}
    batch = {"custom_id": "1", "body": said("hello"), "response": {"body": answer}, "timestamp": 3}
    following = said("hello", "four score " * 9, "and?", timestamp=10.5)
    trace = read_openai(write(tmp_path / "o.jsonl", batch, following), BYTES)
    (session,) = trace.sessions
    early, late = session.turns
    assert early.answer is not None
    assert len(early.answer) > 5
    path = [*early.blocks.tolist(), *early.answer.tolist()]
    assert late.blocks.tolist()[: len(path) - 1] == path[:-1]
    assert (session.start_s, late.start_s, trace.has_times) == (0.0, 7.5, True)


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        (said("a"), 5),
        (said("a", max_completion_tokens=4), 4),
        (said("a", usage={"completion_tokens": 3}), 3),
        (said("a", max_tokens=None, max_completion_tokens=None), 7),
        (said("a", choices=[{"text": "12345"}]), 2),
    ],
)
def test_the_length_of_an_answer_is_what_is_known_best(
    tmp_path: Path, line: dict, tokens: int
) -> None:
    options = TextOptions(as_bytes=True, output_tokens=7 if line["max_tokens"] is None else None)
    trace = read_openai(write(tmp_path / "o.jsonl", line), options)
    assert trace.sessions[0].turns[0].output_tokens == tokens


def test_a_session_id_and_plain_prompts_are_read(tmp_path: Path) -> None:
    lines = [
        {"prompt": "one", "max_tokens": 1, "session_id": "x"},
        {"prompt": "two", "max_tokens": 1, "session_id": "x"},
        {"prompt": "one", "max_tokens": 1},
    ]
    trace = read_openai(write(tmp_path / "o.jsonl", *lines), BYTES)
    assert [(each.name, len(each.turns)) for each in trace.sessions] == [("x", 2), ("line 3", 1)]


def test_tools_and_calls_are_part_of_the_prompt(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    calls = [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]
    plain, tooled, calling = (
        read_openai(write(tmp_path / "o.jsonl", line), BYTES).sessions[0].turns[0].input_tokens
        for line in (
            said("a"),
            said("a", tools=tools),
            {"messages": [{"role": "assistant", "tool_calls": calls}], "max_tokens": 1},
        )
    )
    assert tooled > plain + 10
    assert calling > 10


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (said("a", max_tokens=None), "nothing says how long the answer is"),
        ({"max_tokens": 1}, "either `messages` or `prompt`"),
        (said("a", prompt="b"), "either `messages` or `prompt`"),
        ({"messages": [], "max_tokens": 1}, "`messages` is empty"),
        (said("a", timestamp=3.0), "some lines have a `timestamp`"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "max_tokens": 1},
            "'image_url', not text",
        ),
        (said("a", max_tokens=-1), "max_tokens"),
    ],
)
def test_an_openai_fault_names_the_file_and_the_line(tmp_path: Path, bad: dict, named: str) -> None:
    path = write(tmp_path / "o.jsonl", said("a"), bad)
    with pytest.raises(TraceError, match=named) as error:
        read_openai(path, BYTES)
    assert error.value.line == 2
    assert str(path) in str(error.value)
