"""One choice while it grows: from engine events to deltas of text, tokens and logprobs.

Knows the tokenizer only through `GrowingText`; knows no JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.engine.protocol import TokenEvent
from twinpool.scheduling.events import FinishReason
from twinpool.scheduling.plan import TokenLogprobs
from twinpool.server.errors import ApiError
from twinpool.server.text import GrowingText


@dataclass(slots=True)
class Delta:
    """What events added to a choice.

    Attributes:
        text: Text that may be shown.
        tokens: Token ids, end tokens included.
        logprobs: Of `tokens`, when asked for.
        prompt_logprobs: Of the prompt's tokens from the second on, with the first token.
        finish_reason: `stop` or `length` on the last delta.
        stop_reason: The stop string or stop token that ended it; None for the model's own end.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def extend(self, other: Delta) -> None:
        """Add what came later."""
        self.text += other.text
        self.tokens += other.tokens
        self.logprobs += other.logprobs
        if other.prompt_logprobs is not None:
            self.prompt_logprobs = other.prompt_logprobs
        self.finish_reason = other.finish_reason
        self.stop_reason = other.stop_reason


class Choice:
    """Turns one request's events into deltas.

    Args:
        text: Where its text grows; None without a tokenizer.
        eos_token_ids: The model's end tokens; ending with one is not a stop reason to report.
        is_scored_only: True when no output was asked for: the one token that the engine makes all
            the same is dropped.
    """

    def __init__(
        self,
        text: GrowingText | None,
        eos_token_ids: tuple[int, ...] = (),
        *,
        is_scored_only: bool = False,
    ) -> None:
        self._text = text
        self._eos = eos_token_ids
        self._is_scored_only = is_scored_only
        self.num_tokens = 0
        self.cached_tokens = 0

    def take(self, event: TokenEvent) -> Delta:
        """Return what an event adds.

        Raises:
            ApiError: 500 when the engine ended the request with an error.
        """
        self.cached_tokens = event.cached_tokens
        reason = event.finish_reason
        if reason in (FinishReason.ERROR, FinishReason.ABORT):
            why = event.error or "the engine ended this request"
            raise ApiError(500, why, code="generation_failed")
        delta = Delta(prompt_logprobs=event.prompt_logprobs)
        if self._is_scored_only:
            delta.finish_reason = None if reason is None else FinishReason.LENGTH.value
            return delta
        if event.token is not None:
            self.num_tokens += 1
            delta.tokens.append(event.token)
        if event.logprobs is not None:
            delta.logprobs.append(event.logprobs)
        if reason is not None:
            delta.finish_reason = reason.value
            delta.stop_reason = self._stop_reason(event)
        if self._text is not None:
            delta.text = self._grow(self._text, event)
        return delta

    def _stop_reason(self, event: TokenEvent) -> str | int | None:
        if event.stop_string is not None:
            return event.stop_string
        return None if event.stop_token in self._eos else event.stop_token

    @staticmethod
    def _grow(text: GrowingText, event: TokenEvent) -> str:
        token = None if event.stop_token is not None else event.token
        if event.finish_reason is None:
            return text.push(token)
        return text.finish(token, event.stop_string)
