"""Text of one choice while it grows: detokenising, and holding back what may be a stop string.

Knows the tokenizer by what it does. No text that a client has seen is ever taken back: what could
still turn out to be the beginning of a stop string, or half a character, is kept until it is clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from twinpool.engine.detokenizer import Detokenizer
from twinpool.engine.stopping import StopMatcher


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

    The engine says when a stop string has ended the choice; what is shown until then never holds
    the beginning of one.

    Args:
        detokenizer: A fresh one.
        stop_strings: Strings that may end the choice; the text ends before them.
    """

    def __init__(self, detokenizer: Detokenizer, stop_strings: tuple[str, ...] = ()) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop_strings)

    def push(self, token: int | None) -> str:
        """Add a token that does not end the choice; return the text that may be shown now."""
        text = "" if token is None else self._detokenizer.push(token)
        return self._matcher.push(text, armed=False).text

    def finish(self, token: int | None, stop_string: str | None) -> str:
        """Add the last token and return the rest of the text.

        Args:
            token: The last token; None when it has no text, as an end token.
            stop_string: The string that ended the choice, if one did; it and what follows it are
                left out.
        """
        text = "" if token is None else self._detokenizer.push(token)
        last = self._matcher.push(text, armed=stop_string is not None)
        if last.stop_string is not None:
            return last.text
        # The engine looks at the text without special tokens; with them the stop string may not
        # stand in one piece, and then there is nothing to leave out.
        tail = self._matcher.push(self._detokenizer.finish(), armed=False)
        return last.text + tail.text + self._matcher.finish()
