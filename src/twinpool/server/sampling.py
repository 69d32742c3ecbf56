"""From a request's sampling fields and the model's defaults to `SamplingParams`.

An explicit field beats the model's generation config, and that beats the API's own default. Knows
neither prompts nor texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twinpool.engine.protocol import EngineFacts
from twinpool.errors import ConfigError
from twinpool.scheduling.sampling import SamplingParams
from twinpool.server.errors import bad_request, from_twinpool, unsupported
from twinpool.server.limits import Limits, check_count
from twinpool.server.schema import SamplingBody

_PARAMS = frozenset(SamplingParams.__dataclass_fields__)
_SEEDS = 2**64


def sampling_of(
    body: SamplingBody,
    info: EngineFacts,
    limits: Limits,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    has_tokenizer: bool = True,
    draw_seed: Callable[[], int] = lambda: random.SystemRandom().getrandbits(63),
) -> SamplingParams:
    """Return the parameters of a request's first choice.

    Args:
        body: The request.
        info: Gives the model's defaults and its vocabulary.
        limits: Upper bounds.
        max_tokens: Output tokens at most, checked already.
        logprobs: How many logprobs the chosen tokens come with.
        prompt_logprobs: The same for the prompt.
        has_tokenizer: False when the server has none; stop strings are then refused.
        draw_seed: Where the seed comes from when the request has none.

    Raises:
        ApiError: 400 that names the field.
    """
    defaults = info.generation
    values: dict[str, Any] = {
        "temperature": _first(body.temperature, defaults.temperature),
        "top_p": _first(body.top_p, defaults.top_p),
        "top_k": _top_k(_first(body.top_k, defaults.top_k)),
        "min_p": _first(body.min_p, defaults.min_p),
        "repetition_penalty": _first(body.repetition_penalty, defaults.repetition_penalty),
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "min_tokens": body.min_tokens,
        "ignore_eos": body.ignore_eos,
        "seed": draw_seed() if body.seed is None else body.seed,
        "logit_bias": _logit_bias(body.logit_bias, info.vocab_size, limits),
        "stop_strings": _stop_strings(body.stop, limits, has_tokenizer),
        "stop_token_ids": _stop_tokens(body.stop_token_ids, info.vocab_size, limits),
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
    }
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return SamplingParams(max_tokens=max_tokens, **given)
    except ConfigError as error:
        raise from_twinpool(error, _PARAMS) from None


def choice_sampling(first: SamplingParams, index: int) -> SamplingParams:
    """Return the parameters of a later choice: the same, with a seed of its own.

    Args:
        first: Those of choice 0.
        index: Number of the choice, from 0.
    """
    seed = first.seed + index
    return replace(first, seed=seed if seed < _SEEDS else seed - _SEEDS) if index else first


def refuse_unsupported(body: SamplingBody) -> None:
    """Refuse what would change the answer and is not done here.

    Raises:
        ApiError: 400 that names the field.
    """
    kind = (body.response_format or {}).get("type", "text")
    if kind != "text":
        shown = kind if isinstance(kind, str) and len(kind) <= 40 else type(kind).__name__
        raise unsupported(f"response_format of type {shown!r}", "response_format", "only 'text' is")
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options goes with stream: true only", "stream_options")


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _top_k(top_k: float | None) -> int | None:
    # -1 is how other servers spell "all"; 0 is how the engine does.
    return None if top_k is None else 0 if top_k == -1 else int(top_k)


def _logit_bias(
    biases: dict[str, float] | None, vocab_size: int, limits: Limits
) -> dict[int, float] | None:
    if biases is None:
        return None
    check_count(len(biases), limits.max_logit_biases, "logit biases", "logit_bias")
    parsed: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdecimal()) or len(key) > 10 or int(key) >= vocab_size:
            raise bad_request(
                f"logit_bias: {key[:20]!r} is not a token id below {vocab_size}", "logit_bias"
            )
        parsed[int(key)] = bias
    return parsed


def _stop_strings(
    stop: str | list[str] | None, limits: Limits, has_tokenizer: bool
) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    check_count(len(stops), limits.max_stop_strings, "stop strings", "stop")
    for text in stops:
        if not text:
            raise bad_request("a stop string is empty", "stop")
        if len(text) > limits.max_stop_chars:
            raise bad_request(
                f"a stop string has {len(text)} characters, at most {limits.max_stop_chars} "
                "are allowed",
                "stop",
            )
    if stops and not has_tokenizer:
        raise unsupported("stop", "stop", "the server runs without a tokenizer: stop_token_ids is")
    return stops


def _stop_tokens(tokens: list[int] | None, vocab_size: int, limits: Limits) -> tuple[int, ...]:
    if tokens is None:
        return ()
    check_count(len(tokens), limits.max_stop_tokens, "stop token ids", "stop_token_ids")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise bad_request(
                f"stop_token_ids: {token} is not a token id below {vocab_size}", "stop_token_ids"
            )
    return tuple(tokens)
