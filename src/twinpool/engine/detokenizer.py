"""Incremental detokenising: text grows token by token and is never taken back.

Knows neither stop strings nor requests. All the pieces together are the decoding of all the tokens;
half a UTF-8 character waits for its other half.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
# A character has four bytes at most; tokens that are held for longer will not become one.
_MAX_HELD_TOKENS = 8


class Detokenizer(Protocol):
    """Turns tokens into text one by one."""

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain."""
        ...

    def finish(self) -> str:
        """Return what is left, incomplete characters as U+FFFD."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies, where every token stands for bytes: exact for any tokens.

    Args:
        token_bytes: Gives the bytes of a token.
        skipped: Tokens that are left out.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skipped: frozenset[int]) -> None:
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain.

        Cost:
            Constant in the length of the text.
        """
        return "" if token in self._skipped else self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """Return what is left, an incomplete character as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other vocabulary: decodes a short window twice and shows the difference.

    Exact for tokens that spell valid UTF-8. Where a model writes a run of byte tokens that is none,
    decoders of this kind turn the whole run to U+FFFD, also what was shown before: then what was
    shown stays.

    Args:
        decode: Decodes a sequence of tokens.
        skipped: Tokens that `decode` leaves out.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], skipped: frozenset[int]) -> None:
        self._decode = decode
        self._skipped = skipped
        # Tokens from a few before what is shown; the first `_num_shown` of them are shown.
        self._window: list[int] = []
        self._num_shown = 0

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain.

        Cost:
            Two decodings of a few tokens.
        """
        if token in self._skipped:
            return ""
        self._window.append(token)
        shown = self._decode(self._window[: self._num_shown])
        text = self._decode(self._window)
        num_held = len(self._window) - self._num_shown
        if text.endswith(_REPLACEMENT) and num_held < _MAX_HELD_TOKENS:
            return ""
        self._window = self._window[self._num_shown :]
        self._num_shown = len(self._window)
        return text[len(shown) :]

    def finish(self) -> str:
        """Return what is left, incomplete characters as U+FFFD."""
        shown = self._decode(self._window[: self._num_shown])
        text = self._decode(self._window)
        self._num_shown = len(self._window)
        return text[len(shown) :]
