"""How a request wants its tokens chosen: a frozen record, validated on construction.

Knows the meaning and the range of every parameter; choosing tokens is the executor's work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from twinpool.errors import ConfigError

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose the next token, and when to stop.

    Attributes:
        max_tokens: Output tokens at most, 1 or more.
        min_tokens: Output tokens before a stop token or stop string may end the request.
        temperature: 0 is greedy; else logits are divided by it.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set whose probability reaches p, in (0, 1].
        min_p: Drop tokens below p times the best probability, in [0, 1].
        repetition_penalty: Over prompt and output, > 0; 1 is off.
        presence_penalty: Subtracted once from tokens in the output, in [-2, 2].
        frequency_penalty: Subtracted per occurrence in the output, in [-2, 2].
        logit_bias: Token id to bias, added to its logit.
        seed: Makes sampling repeatable; with the same seed and prompt the same tokens come,
            whatever else is in the batch.
        stop_token_ids: Tokens that end the request (kept in `token_ids`, left out of the text).
        stop_strings: Strings that end the request; the text ends before them.
        ignore_eos: The model's own end tokens do not end the request.
        logprobs: None: no logprobs; n: logprob of the chosen token and of the n best.
        prompt_logprobs: The same for the prompt's tokens.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check("temperature", self.temperature, 0.0, 1e6)
        _check("top_k", self.top_k, 0, 2**31 - 1)
        _check("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ConfigError("top_p is 0", hint="use a value in (0, 1], or temperature 0")
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check("seed", self.seed, -(2**63), 2**64 - 1)
        for token, bias in self.logit_bias.items():
            _check(f"logit_bias[{token}]", bias, -100.0, 100.0)
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _check(name, count, 0, MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is taken without drawing."""
        return self.temperature == 0.0


def _check(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(f"{name} is {value}", hint=f"use a value from {low} to {high}")
