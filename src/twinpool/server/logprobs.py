"""Logprobs in the two forms of the API; knows no request."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from twinpool.scheduling.plan import TokenLogprobs
from twinpool.server.responses import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    TopLogprob,
)
from twinpool.server.text import TextTokenizer


class TokenNames:
    """How single tokens are shown.

    Args:
        tokenizer: None shows ids.
    """

    def __init__(self, tokenizer: TextTokenizer | None) -> None:
        self._tokenizer = tokenizer

    def name(self, token: int) -> str:
        r"""Return a token's text; `bytes:\xe2\x80` when its bytes are no text by themselves."""
        raw = self.raw(token)
        if raw is None:
            return f"token_id:{token}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def raw(self, token: int) -> bytes | None:
        """Return a token's bytes; None without a tokenizer."""
        return None if self._tokenizer is None else self._tokenizer.token_bytes(token)


def chat_logprobs(entries: Sequence[TokenLogprobs], names: TokenNames) -> ChatLogprobs:
    """Return the chat form."""
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                token=names.name(entry.token),
                logprob=_finite(entry.logprob),
                bytes=_bytes(names.raw(entry.token)),
                top_logprobs=[
                    TopLogprob(
                        token=names.name(token),
                        logprob=_finite(logprob),
                        bytes=_bytes(names.raw(token)),
                    )
                    for token, logprob in entry.top
                ],
            )
            for entry in entries
        ]
    )


class CompletionLogprobsForm:
    """The completions form, whose text offsets count on from part to part.

    Args:
        names: How tokens are shown.
        offset: Where the first token's text begins.
    """

    def __init__(self, names: TokenNames, offset: int = 0) -> None:
        self._names = names
        self._offset = offset
        # Characters can be spread over tokens; this counts them when they are whole.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def prompt(self, tokens: Sequence[int], entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """Return the entries of a prompt; its first token has no logprob."""
        first, rest = tokens[:1], self.part(())
        for token in first:
            self._add(rest, token, None, None)
        for entry in entries:
            self._add_entry(rest, entry)
        return rest

    def part(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """Return the entries of output tokens, and move the offset on."""
        form = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for entry in entries:
            self._add_entry(form, entry)
        return form

    def _add_entry(self, form: CompletionLogprobs, entry: TokenLogprobs) -> None:
        top = {self._names.name(token): _finite(logprob) for token, logprob in entry.top}
        # The chosen token is always among them, also when it is not among the likely.
        top.setdefault(self._names.name(entry.token), _finite(entry.logprob))
        self._add(form, entry.token, _finite(entry.logprob), top)

    def _add(
        self,
        form: CompletionLogprobs,
        token: int,
        logprob: float | None,
        top: dict[str, float] | None,
    ) -> None:
        form.tokens.append(self._names.name(token))
        form.token_logprobs.append(logprob)
        form.top_logprobs.append(top)
        form.text_offset.append(self._offset)
        self._offset += len(self._decoder.decode(self._names.raw(token) or b""))


def joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Return several parts as one."""
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )


def _bytes(raw: bytes | None) -> list[int] | None:
    return None if raw is None else list(raw)


def _finite(logprob: float) -> float:
    # JSON has no infinity; -9999 is what the API writes for "never".
    return max(logprob, -9999.0)
