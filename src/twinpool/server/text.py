"""Text of one choice while it grows: detokenising, and holding back what may be a stop string.

Knows the tokenizer by what it does. No text that a client has seen is ever taken back: what could
still turn out to be the beginning of a stop string, or half a character, is kept until it is clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Detokenizer(Protocol):
    """Turns tokens into text one by one."""

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain."""
        ...

    def finish(self) -> str:
        """Return what is left, incomplete characters as U+FFFD."""
        ...


class TextTokenizer(Protocol):
    """What the front needs of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; its name for a special token."""
        ...

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Return a fresh incremental detokenizer."""
        ...


class RenderedChat(Protocol):
    """A chat as the model reads it."""

    @property
    def tokens(self) -> list[int]:
        """Token ids of the whole prompt."""
        ...

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Depths that later prompts are likely to repeat unchanged."""
        ...


class ChatRenderer(Protocol):
    """Renders messages with the model's template."""

    def render(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool, **variables: Any
    ) -> RenderedChat:
        """Return the prompt; raises ConfigError when the template refuses the messages."""
        ...


class GrowingText:
    """The text of one choice.

    Args:
        detokenizer: A fresh one.
        stop_strings: Strings that end the choice; the text ends before them.
    """

    def __init__(self, detokenizer: Detokenizer, stop_strings: tuple[str, ...] = ()) -> None:
        self._detokenizer = detokenizer
        self._stops = stop_strings
        self._pending = ""

    def push(self, token: int | None) -> str:
        """Add a token that does not end the choice; return the text that may be shown now."""
        if token is not None:
            self._pending += self._detokenizer.push(token)
        return self._release(held_length(self._pending, self._stops))

    def finish(self, token: int | None, stop_string: str | None) -> str:
        """Add the last token and return the rest of the text.

        Args:
            token: The last token; None when it has no text, as an end token.
            stop_string: The string that ended the choice, if one did; it and what follows it are
                left out.
        """
        if token is not None:
            self._pending += self._detokenizer.push(token)
        self._pending += self._detokenizer.finish()
        if stop_string is not None:
            # What is pending began with this stop string or holds it whole; an earlier one that
            # min_tokens passed over has been shown.
            cut = self._pending.find(stop_string)
            if cut >= 0:
                self._pending = self._pending[:cut]
        return self._release(0)

    def _release(self, held: int) -> str:
        cut = len(self._pending) - held
        shown, self._pending = self._pending[:cut], self._pending[cut:]
        return shown


def held_length(text: str, stop_strings: tuple[str, ...]) -> int:
    """Return the length of the longest end of a text that begins a stop string.

    Args:
        text: What has not been shown.
        stop_strings: Strings that may end the text. A whole one does not count: the engine would
            have ended the choice with it.
    """
    longest = max((len(stop) - 1 for stop in stop_strings), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[len(text) - length :]
        if any(len(stop) > length and stop.startswith(tail) for stop in stop_strings):
            return length
    return 0
