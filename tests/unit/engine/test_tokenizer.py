"""The tokenizer: what a folder says, what tokens stand for, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from text_models import (
    sentencepiece_backend,
    small_backend,
    small_tokenizer,
    word_backend,
    write_tokenizer,
)
from twinpool.engine.end_tokens import read_end_tokens
from twinpool.engine.tokenizer import Tokenizer
from twinpool.errors import ConfigError

TEXTS = (
    "",
    " ",
    "Hello! How are you today?",
    "tabs\tand\nlines\r\n\n  and   spaces ",
    "żółć, 漢字, עברית, 🎉👩‍👩‍👧",
    "<|im_start|>user\nhi<|im_end|>",
    "not <|im_startx|> special, <| |>",
    "\x00\x7f\ufffd",
)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import PreTrainedTokenizerFast

    folder = write_tokenizer(tmp_path_factory.mktemp("oracle"))
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_encoding_and_decoding_equal_transformers(
    tokenizer: Tokenizer, oracle: Any, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == oracle.encode(text)
    for skip in (True, False):
        decoded = tokenizer.decode(ids, skip_special_tokens=skip)
        assert decoded == oracle.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_tokens_make_up_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_special_tokens_in_a_text_are_parsed(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_id("<|im_end|>") in tokenizer.encode("so <|im_end|> it goes")


def test_a_token_is_named_by_its_text(tokenizer: Tokenizer) -> None:
    (the,) = tokenizer.encode(" the")
    half = tokenizer.encode("é")[0]
    assert tokenizer.token_text(the) == " the"
    assert tokenizer.token_bytes(half) == b"\xc3"
    assert tokenizer.token_text(half) == "\ufffd"
    assert tokenizer.token_bytes(tokenizer.eos_token_ids[0]) == b"<|im_end|>"


def test_ids_without_a_token_add_nothing(tokenizer: Tokenizer) -> None:
    beyond = tokenizer.vocab_size
    assert tokenizer.token_bytes(beyond) == b""
    assert tokenizer.decode([*tokenizer.encode("a b"), beyond]) == "a b"


def test_vocab_size_is_one_more_than_the_highest_id(tokenizer: Tokenizer) -> None:
    highest = tokenizer.vocab_size - 1
    assert tokenizer.token_bytes(highest)
    assert tokenizer.token_bytes(highest + 1) == b""


def test_lone_surrogates_are_a_client_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="surrogate"):
        tokenizer.encode("a\ud800b")


def test_truncation_left_from_training_is_switched_off(tmp_path: Path) -> None:
    backend = json.loads(small_backend())
    backend["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, json.dumps(backend)))
    assert len(tokenizer.encode("one two three four five six seven")) > 3


def test_end_tokens_are_those_of_the_generation_config_and_the_tokenizers_own(
    tmp_path: Path,
) -> None:
    write_tokenizer(tmp_path, eos_token={"content": "<|im_end|>", "__type": "AddedToken"})
    own = Tokenizer.from_folder(tmp_path).eos_token_ids
    assert own == (2,)
    _write(tmp_path / "config.json", {"text_config": {"eos_token_id": 0}})
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (0, 2)
    assert read_end_tokens(tmp_path) == (0,)
    _write(tmp_path / "config.json", {"eos_token_id": 1, "text_config": {"eos_token_id": 0}})
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (1, 2)
    _write(tmp_path / "generation_config.json", {"eos_token_id": [2, 5, 2]})
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == (2, 5)
    assert read_end_tokens(tmp_path) == (2, 5)


def test_no_end_token_anywhere_is_none(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, eos_token=None)
    assert Tokenizer.from_folder(tmp_path).eos_token_ids == ()


@pytest.mark.parametrize("value", ["2", 2.5, [True], [1, None], {}])
def test_end_tokens_of_a_wrong_type_are_refused(tmp_path: Path, value: object) -> None:
    write_tokenizer(tmp_path)
    _write(tmp_path / "generation_config.json", {"eos_token_id": value})
    with pytest.raises(ConfigError, match="eos_token_id"):
        Tokenizer.from_folder(tmp_path)


def test_special_tokens_come_from_the_map_too(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    _write(tmp_path / "special_tokens_map.json", {"pad_token": {"content": "<|endoftext|>"}})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def test_tokens_that_only_the_config_lists_are_added(tmp_path: Path) -> None:
    first = small_tokenizer(tmp_path).vocab_size
    listed = {
        str(first): {"content": "<think>", "special": False, "normalized": False},
        str(first + 1): {"content": "<|x|>", "special": True},
        "2": {"content": "<|im_end|>", "special": True},
    }
    tokenizer = small_tokenizer(tmp_path, added_tokens_decoder=listed)
    assert tokenizer.encode("a<think><|x|>")[1:] == [first, first + 1]
    assert tokenizer.decode([first, first + 1]) == "<think>"
    assert first + 1 in tokenizer.special_ids


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ({"9": {"content": "<|im_end|>", "special": True}}, "id 2 .* and 9"),
        ({"x": {"content": "a"}}, "cannot be used"),
        ({"5": {}}, "cannot be used"),
    ],
)
def test_a_config_of_another_checkpoint_is_refused(
    tmp_path: Path, listed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        small_tokenizer(tmp_path, added_tokens_decoder=listed)


def test_a_folder_without_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json") as caught:
        Tokenizer.from_folder(tmp_path)
    assert "--skip-tokenizer-init" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": "1.0"}'])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, text: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be used"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "\ud800"])
def test_a_broken_file_beside_it_is_named(tmp_path: Path, text: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        Tokenizer.from_folder(tmp_path)


def test_templates_come_from_the_config_and_from_files(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    write_tokenizer(tmp_path, chat_template=named)
    assert Tokenizer.from_folder(tmp_path).chat_templates == {"default": "D", "tool_use": "T"}
    write_tokenizer(tmp_path, chat_template="inline")
    assert Tokenizer.from_folder(tmp_path).chat_templates == {"default": "inline"}
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert Tokenizer.from_folder(tmp_path).chat_templates == {"default": "file", "rag": "R"}


def test_a_sentencepiece_vocabulary_spells_its_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(
        write_tokenizer(tmp_path, sentencepiece_backend(), eos_token="</s>")
    )
    text = "the dé\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" " + text.encode()
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.token_bytes(2) == b"</s>"


def test_a_wordpiece_vocabulary_decodes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, word_backend(), eos_token="[SEP]"))
    assert tokenizer.decode(tokenizer.encode("the dogs run.")) == "the dogs run."


def test_the_front_can_load_it_without_torch_or_transformers(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, chat_template="{{ messages[0].content }}")
    code = (
        "import sys, pathlib\n"
        "from twinpool.engine.tokenizer import Tokenizer\n"
        "from twinpool.engine.chat import ChatRenderer\n"
        "import twinpool.engine.stopping\n"
        "tokenizer = Tokenizer.from_folder(pathlib.Path(sys.argv[1]))\n"
        "ChatRenderer(tokenizer).render([{'role': 'user', 'content': 'x'}],"
        " add_generation_prompt=True)\n"
        "print([name for name in ('torch', 'transformers', 'numba') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_library(text: str, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(small_backend())
    assert small_tokenizer(tmp_path).encode(text) == backend.encode(text).ids


def test_other_threads_go_on_while_a_long_text_is_encoded(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path)
    rounds = 0
    worker = threading.Thread(target=tokenizer.encode, args=("some words and more " * 100_000,))
    worker.start()
    while worker.is_alive():
        rounds += 1
        time.sleep(0.001)
    # With the interpreter's lock held throughout, this loop comes round once or twice.
    assert rounds > 10
