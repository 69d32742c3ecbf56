"""The front's text tools, from a model folder."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fake_engine import FakeSettings, fake_info
from twinpool.engine import default_model
from twinpool.engine.protocol import EngineFacts
from twinpool.errors import ConfigError
from twinpool.server.launch import load_text


@pytest.fixture(scope="module")
def folder() -> Path:
    return default_model.folder()


def _facts(folder: Path | None) -> EngineFacts:
    where = None if folder is None else str(folder)
    return msgspec.structs.replace(fake_info(FakeSettings()), tokenizer_dir=where)


def _without_templates(folder: Path, target: Path) -> Path:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    (target / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    return target


def test_a_model_with_a_template_has_both_tools(folder: Path) -> None:
    tools = load_text(_facts(folder))
    assert tools is not None
    assert tools.chat is not None
    tokens = tools.tokenizer.encode("The river")
    assert tools.tokenizer.decode(tokens) == "The river"
    messages = [{"role": "user", "content": "Hello"}]
    chat = tools.chat.render(messages, add_generation_prompt=True)
    assert "Hello" in tools.tokenizer.decode(chat.tokens)
    assert all(0 < depth < len(chat.tokens) for depth in chat.boundaries)


def test_a_model_without_a_template_serves_completions(folder: Path, tmp_path: Path) -> None:
    tools = load_text(_facts(_without_templates(folder, tmp_path)))
    assert tools is not None
    assert tools.chat is None


def test_a_model_without_a_tokenizer_has_none() -> None:
    assert load_text(_facts(None)) is None


def test_a_folder_without_its_tokenizer_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json") as caught:
        load_text(_facts(tmp_path))
    assert "--skip-tokenizer-init" in caught.value.hint
