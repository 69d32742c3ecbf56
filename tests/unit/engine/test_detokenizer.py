"""Text grows by what is certain: characters whole, special tokens left out or kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from text_models import sentencepiece_backend, small_tokenizer, word_backend, write_tokenizer
from twinpool.engine.detokenizer import ByteDetokenizer, WindowDetokenizer
from twinpool.engine.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_a_character_of_many_tokens_comes_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🎉!")
    detokenizer = tokenizer.detokenizer()
    assert len(ids) == 6
    assert [detokenizer.push(token) for token in ids] == ["a", "", "", "", "🎉", "!"]
    assert detokenizer.finish() == ""


def test_half_a_character_at_the_end_is_a_replacement(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push(token) for token in tokenizer.encode("é")[:1]] == [""]
    assert detokenizer.finish() == "\ufffd"


def test_a_replacement_character_that_the_model_writes_is_shown_at_once(
    tokenizer: Tokenizer,
) -> None:
    ids = tokenizer.encode("\ufffd")
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push(token) for token in ids][-1] == "\ufffd"


def test_special_tokens_are_left_out_or_kept(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" the<|im_end|> dog")
    for skip, text in ((True, " the dog"), (False, " the<|im_end|> dog")):
        detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
        assert "".join(map(detokenizer.push, ids)) == text


def test_which_kind_serves_a_vocabulary(tokenizer: Tokenizer, tmp_path: Path) -> None:
    other = Tokenizer.from_folder(write_tokenizer(tmp_path, word_backend()))
    assert isinstance(tokenizer.detokenizer(), ByteDetokenizer)
    assert isinstance(other.detokenizer(), WindowDetokenizer)


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        (sentencepiece_backend(), "the dog, a 漢字 é.\n\n  the end"),
        (word_backend(), "the dogs run. the dog"),
    ],
    ids=["sentencepiece", "wordpiece"],
)
def test_other_vocabularies_stream_what_they_decode(
    tmp_path: Path, backend: str, text: str
) -> None:
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, backend))
    ids = tokenizer.encode(text)
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.push(token) for token in ids]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids)


def test_a_window_never_holds_more_than_a_few_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, sentencepiece_backend()))
    widths: list[int] = []

    def decode(ids: list[int]) -> str:
        widths.append(len(ids))
        return tokenizer.decode(ids)

    detokenizer = WindowDetokenizer(decode, frozenset())
    bad_byte = tokenizer.token_id("<0xFF>")
    assert bad_byte is not None
    text = "".join(detokenizer.push(bad_byte) for _ in range(200))
    assert max(widths) <= 24
    assert (text + detokenizer.finish()).count("\ufffd") == 200
