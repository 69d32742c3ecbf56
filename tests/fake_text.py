"""A stand-in for the tokenizer and the chat template: a token per byte, and three special ones."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fake_engine import EOS, IM_END, IM_START
from twinpool.errors import ConfigError
from twinpool.server.service import TextTools

SPECIAL = {EOS: "<eos>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}


class ByteDetokenizer:
    """UTF-8, byte by byte."""

    def __init__(self, *, skip_special_tokens: bool) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._skips = skip_special_tokens

    def push(self, token: int) -> str:
        if token < 256:
            return self._decoder.decode(bytes([token]))
        return "" if self._skips else SPECIAL.get(token, f"<{token}>")

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """A token per byte."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return "".join(detokenizer.push(token) for token in tokens) + detokenizer.finish()

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else SPECIAL.get(token, f"<{token}>").encode()

    def detokenizer(self, *, skip_special_tokens: bool = True) -> ByteDetokenizer:
        return ByteDetokenizer(skip_special_tokens=skip_special_tokens)


@dataclass(frozen=True)
class FakeChat:
    """A rendered chat."""

    tokens: list[int]
    boundaries: tuple[int, ...]


class FakeRenderer:
    """ChatML; refuses a first message of role tool, as templates do."""

    def render(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool, **variables: Any
    ) -> FakeChat:
        if messages[0]["role"] == "tool":
            raise ConfigError("the template says: a chat cannot begin with a tool")
        tokens: list[int] = []
        boundaries = []
        for message in messages:
            text = f"{message['role']}\n{message['content']}"
            tokens += [IM_START, *text.encode(), IM_END, 10]
            boundaries.append(len(tokens))
        if add_generation_prompt:
            tokens += [IM_START, *b"assistant\n"]
        if variables.get("enable_thinking"):
            tokens += b"<think>"
        return FakeChat(tokens, tuple(n for n in boundaries if n < len(tokens)))


def text_tools() -> TextTools:
    """Return the stand-ins."""
    return TextTools(ByteTokenizer(), FakeRenderer())
