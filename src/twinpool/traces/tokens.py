"""Tokens of recorded text: by a `tokenizer.json`, or by bytes where that is asked for.

Knows no trace format and no chat template. Neither way is the default: how long a prompt is
decides what a trace says, so the user has to choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from twinpool.errors import ConfigError

BYTES_PER_TOKEN = 4
DEFAULT_BLOCK_TOKENS = 16

TokenArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How text becomes blocks.

    Attributes:
        tokenizer: A Hugging Face `tokenizer.json`; None for none.
        as_bytes: Count four bytes of UTF-8 as a token.
        block_tokens: Tokens of a block.
        output_tokens: Tokens of an answer that the trace says nothing of; None for none.

    Raises:
        ConfigError: If both ways are chosen, or a number is out of range.
    """

    tokenizer: Path | None = None
    as_bytes: bool = False
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    output_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokenizer is not None and self.as_bytes:
            raise ConfigError("--tokenizer and --bytes are both given", hint="choose one")
        if self.block_tokens < 1:
            raise ConfigError(f"--block-tokens is {self.block_tokens}", hint="1 or more")
        if self.output_tokens is not None and self.output_tokens < 0:
            raise ConfigError(f"--output-tokens is {self.output_tokens}", hint="0 or more")


class Encoder(Protocol):
    """Turns a prompt and its answer into tokens."""

    def split(self, prompt: str, answer: str) -> tuple[TokenArray, TokenArray]:
        """Return the tokens of the prompt and those of the answer after it."""


def encoder_of(options: TextOptions) -> Encoder:
    """Return the encoder that the options name.

    Raises:
        ConfigError: If they name none, or the tokenizer cannot be loaded.
        ModuleNotFoundError: If a tokenizer is named and the package `tokenizers` is missing.
    """
    if options.tokenizer is not None:
        return FileEncoder(options.tokenizer)
    if options.as_bytes:
        return ByteEncoder()
    raise ConfigError(
        "the trace holds text, and nothing says how its tokens are counted",
        hint=f"--tokenizer FILE takes the model's tokenizer.json; --bytes counts {BYTES_PER_TOKEN} "
        "bytes of UTF-8 as a token",
    )


class ByteEncoder:
    """Four bytes of UTF-8 are a token.

    Prompt and answer are cut as one text, so that a longer text has the tokens of its beginnings; a
    token across the border counts as the answer's.
    """

    def split(self, prompt: str, answer: str) -> tuple[TokenArray, TokenArray]:
        """Return the tokens of the prompt and those of the answer after it."""
        before = prompt.encode()
        tokens = _chunks(before + answer.encode())
        count = len(before) // BYTES_PER_TOKEN if answer else len(tokens)
        return tokens[:count], tokens[count:]


class FileEncoder:
    """A Hugging Face tokenizer file, without the special tokens that it would add.

    Args:
        path: The `tokenizer.json`.

    Raises:
        ConfigError: If it cannot be loaded.
        ModuleNotFoundError: If the package `tokenizers` is missing.
    """

    def __init__(self, path: Path) -> None:
        # An extra: loaded only where a tokenizer is asked for.
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        # The library raises plain exceptions for whatever it dislikes about a file.
        except Exception as error:
            raise ConfigError(
                f"--tokenizer {path} cannot be loaded: {error}",
                hint="it is the tokenizer.json of a Hugging Face model",
            ) from error

    def split(self, prompt: str, answer: str) -> tuple[TokenArray, TokenArray]:
        """Return the tokens of the prompt and those of the answer after it."""
        return self._encode(prompt), self._encode(answer)

    def _encode(self, text: str) -> TokenArray:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.int64)


def _chunks(text: bytes) -> TokenArray:
    """Number the chunks by their bytes; the last one also by how many it has."""
    short = len(text) % BYTES_PER_TOKEN
    padded = text + bytes(-len(text) % BYTES_PER_TOKEN)
    tokens = np.frombuffer(padded, dtype="<u4").astype(np.int64)
    if short:
        tokens[-1] += short << 32
    return tokens
