"""The JSON files beside a tokenizer: special tokens, end tokens, chat templates.

Knows no tokenizer; it reads what Hugging Face checkpoints keep around `tokenizer.json`, and runs
nothing that it finds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinpool.errors import ConfigError

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
DEFAULT_TEMPLATE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedTokenEntry:
    """A token that `tokenizer_config.json` lists by id.

    Attributes:
        id: Its id.
        content: Its text.
        special: Whether decoding leaves it out.
        single_word: Whether it matches whole words only.
        lstrip: Whether it takes in the white space before it.
        rstrip: Whether it takes in the white space after it.
        normalized: Whether it is looked for after the normaliser has run.
    """

    id: int
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """What the files say.

    Attributes:
        special_tokens: Text of `bos_token`, `eos_token` and so on, of those that are named.
        added_tokens: Tokens by id, rising.
        chat_templates: Sources by name; `default` is the one for ordinary chats.
        end_token_ids: End tokens that the model's configs name, in their order.
    """

    special_tokens: dict[str, str]
    added_tokens: tuple[AddedTokenEntry, ...]
    chat_templates: dict[str, str]
    end_token_ids: tuple[int, ...]


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read the files of a checkpoint folder; absent ones count as empty.

    Raises:
        ConfigError: If a file is there and cannot be used.
    """
    config = read_json(folder / "tokenizer_config.json")
    special = read_json(folder / "special_tokens_map.json")
    named = {name: _text_of(config.get(name, special.get(name))) for name in SPECIAL_NAMES}
    return TokenizerFiles(
        special_tokens={name: text for name, text in named.items() if text is not None},
        added_tokens=_added_tokens(config, folder / "tokenizer_config.json"),
        chat_templates=_chat_templates(folder, config),
        end_token_ids=read_end_token_ids(folder),
    )


def read_end_token_ids(folder: Path) -> tuple[int, ...]:
    """Return the end tokens of `generation_config.json`, or else of `config.json`.

    Raises:
        ConfigError: If a file is there and cannot be used.
    """
    generation = read_json(folder / "generation_config.json")
    config = read_json(folder / "config.json")
    inner = config.get("text_config")
    sources = (generation, config, inner if isinstance(inner, Mapping) else {})
    for source in sources:
        value = source.get("eos_token_id")
        if value is not None:
            return _token_ids(value, folder)
    return ()


def read_json(path: Path) -> Mapping[str, Any]:
    """Return the object that a JSON file holds; an absent file is an empty one.

    Raises:
        ConfigError: If it is no JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", hint="copy the checkpoint's file again"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value


def _token_ids(value: object, folder: Path) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in values):
        raise ConfigError(
            f"eos_token_id is {value!r} in {folder}", hint="it must be an integer or a list of them"
        )
    return tuple(dict.fromkeys(values))


def _text_of(token: object) -> str | None:
    # Either the text itself or an object with it.
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _added_tokens(config: Mapping[str, Any], path: Path) -> tuple[AddedTokenEntry, ...]:
    entries = config.get("added_tokens_decoder") or {}
    flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
    try:
        found = [
            AddedTokenEntry(
                id=int(token),
                content=entry["content"],
                **{flag: bool(entry[flag]) for flag in flags if flag in entry},
            )
            for token, entry in entries.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"added_tokens_decoder of {path} cannot be used: {error!r}",
            hint="copy the checkpoint's file again",
        ) from error
    return tuple(sorted(found, key=lambda entry: entry.id))


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return template sources by name; files win over the config, as in `transformers`."""
    found: dict[str, str] = {}
    inline = config.get("chat_template")
    if isinstance(inline, str):
        found[DEFAULT_TEMPLATE] = inline
    elif isinstance(inline, list):
        for entry in inline:
            if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
                found[str(entry.get("name", DEFAULT_TEMPLATE))] = entry["template"]
    files = {
        path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    files[DEFAULT_TEMPLATE] = folder / "chat_template.jinja"
    for name, path in files.items():
        if path.is_file():
            try:
                found[name] = path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} cannot be read: {error}") from error
    return found
