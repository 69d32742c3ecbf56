"""The default model: whole, small, in plain layout, and with a vocabulary whose texts come back."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinpool.engine import default_model
from twinpool.engine.chat import ChatRenderer
from twinpool.engine.tokenizer import Tokenizer
from twinpool.errors import ConfigError

MAX_WEIGHT_BYTES = 24_000_000
FILES = {
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
TOKENIZER = Tokenizer.from_folder(default_model.folder())


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return dict(json.loads(file.read(size)))


def test_its_folder_holds_what_a_checkpoint_holds_and_nothing_else() -> None:
    assert {path.name for path in default_model.folder().iterdir()} == FILES


def test_a_package_without_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(default_model, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ConfigError, match="not in") as caught:
        default_model.folder()
    assert "MODEL" in caught.value.hint


def test_weights_are_bfloat16_and_fit_into_a_small_package() -> None:
    weights = default_model.folder() / "model.safetensors"
    header = _header(weights)
    header.pop("__metadata__")
    assert {tensor["dtype"] for tensor in header.values()} == {"BF16"}
    assert weights.stat().st_size <= MAX_WEIGHT_BYTES


def test_the_model_card_states_the_loss_of_every_kind_of_text() -> None:
    card = (default_model.folder() / "README.md").read_text(encoding="utf-8")
    for kind in ("code", "docs", "chat"):
        assert f"| {kind} |" in card


def test_the_end_of_a_turn_ends_an_answer() -> None:
    end, end_of_text = (TOKENIZER.token_id(text) for text in ("<|im_end|>", "<|endoftext|>"))
    assert TOKENIZER.eos_token_ids == (end, end_of_text)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == text


# A run of white space at the front of an answer is one token with the line break before it.
ANSWERS = st.text(max_size=40).filter(lambda text: not re.match(r"\s(\s|$)", text))


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40), ANSWERS)
def test_the_next_turn_begins_with_prompt_and_answer_token_by_token(
    question: str, answer: str
) -> None:
    renderer = ChatRenderer(TOKENIZER)
    first = [{"role": "user", "content": question}]
    prompt = renderer.render(first, add_generation_prompt=True).tokens
    later = [
        *first,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And then?"},
    ]
    sent = renderer.render(later, add_generation_prompt=True).tokens
    known = [*prompt, *TOKENIZER.encode(answer), TOKENIZER.token_id("<|im_end|>")]
    assert sent[: len(known)] == known
