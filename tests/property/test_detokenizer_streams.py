"""All pieces together are the decoding of all tokens, for any tokens whatever."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from text_models import sentencepiece_backend, small_tokenizer, write_tokenizer
from twinpool.engine.tokenizer import Tokenizer

# The first 300 ids hold the special tokens and every single byte: invalid UTF-8 is common.
IDS = st.lists(st.integers(0, 299) | st.integers(0, 1700), max_size=40)


@functools.cache
def _small() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return small_tokenizer(Path(folder))


@functools.cache
def _sentencepiece() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.from_folder(write_tokenizer(Path(folder), sentencepiece_backend()))


@settings(max_examples=200, deadline=None)
@given(IDS, st.booleans())
def test_pieces_make_up_the_whole_for_any_tokens(ids: list[int], skip: bool) -> None:
    detokenizer = _small().detokenizer(skip_special_tokens=skip)
    pieces = [detokenizer.push(token) for token in ids]
    whole = _small().decode(ids, skip_special_tokens=skip)
    assert "".join(pieces) + detokenizer.finish() == whole
    # What is shown early is never taken back: it is the beginning of every longer decoding.
    assert whole.startswith("".join(pieces))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_no_half_character_is_ever_shown(text: str) -> None:
    detokenizer = _small().detokenizer()
    shown = ""
    for token in _small().encode(text):
        shown += detokenizer.push(token)
        if "<|" not in text:
            assert text.startswith(shown)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_pieces_of_encoded_text_make_up_the_whole_for_other_vocabularies(text: str) -> None:
    tokenizer = _sentencepiece()
    ids = tokenizer.encode(text)
    detokenizer = tokenizer.detokenizer()
    pieces = "".join(detokenizer.push(token) for token in ids)
    assert pieces + detokenizer.finish() == tokenizer.decode(ids)
