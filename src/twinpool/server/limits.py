"""What one request may ask for at most, checked before any work is done for it.

Numbers and checks; knows no route and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.engine.protocol import EngineFacts
from twinpool.server.errors import ApiError, bad_request
from twinpool.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of one request, and of the queue.

    Attributes:
        max_body_bytes: Longest body.
        max_prompts: Most prompts of one completions request.
        max_choices: Largest `n`.
        max_stop_strings: Most stop strings.
        max_stop_chars: Longest stop string.
        max_stop_tokens: Most stop token ids.
        max_logit_biases: Most entries of `logit_bias`.
        max_queue: Requests that may wait beyond those that run.
    """

    max_body_bytes: int = 16 * MIB
    max_prompts: int = 256
    max_choices: int = 16
    max_stop_strings: int = 16
    max_stop_chars: int = 1024
    max_stop_tokens: int = 1024
    max_logit_biases: int = 1024
    max_queue: int = 1024


def check_count(count: int, most: int, what: str, param: str) -> None:
    """Refuse more of something than is allowed.

    Raises:
        ApiError: 400 with both numbers.
    """
    if count > most:
        raise bad_request(f"{count} {what}, at most {most} are allowed", param)


def context_exceeded(prompt: int, output: int, info: EngineFacts, param: str) -> ApiError:
    """Return the 400 for a request that is longer than the context, or than the pools hold."""
    total = prompt + output
    limit = f"This model's maximum context length is {info.context_tokens} tokens."
    if total <= info.context_tokens:
        limit = f"The memory pools hold {info.max_request_tokens} tokens of one request."
    return bad_request(
        f"{limit} However, you requested {total} tokens ({prompt} in the prompt, {output} in the "
        "completion). Send a shorter prompt or lower max_tokens.",
        param,
        "context_length_exceeded",
    )


def num_choices(n: int | None, limits: Limits) -> int:
    """Return how many choices a request wants of each prompt.

    Raises:
        ApiError: 400 when it is below 1 or beyond the limit.
    """
    count = 1 if n is None else n
    if count < 1:
        raise bad_request(f"n is {count}; use 1 or more", "n")
    check_count(count, limits.max_choices, "choices", "n")
    return count


def output_budget(
    asked: int | None, default: int | None, info: EngineFacts, *, num_prompt: int, param: str
) -> int:
    """Return how many tokens a request may bring.

    Args:
        asked: What the request says.
        default: What the route takes when it says nothing; None takes all that is left.
        info: Says how many tokens a request may have in all.
        num_prompt: Tokens of the prompt.
        param: The field that said `asked`.

    Returns:
        1 or more. A default is cut to what is left; what was asked is never cut.

    Raises:
        ApiError: 400 when it cannot fit, or is below 1.
    """
    left = min(info.context_tokens, info.max_request_tokens) - num_prompt
    if asked is None:
        if left < 1:
            raise context_exceeded(num_prompt, 1, info, "prompt")
        return left if default is None else min(default, left)
    if asked < 1:
        raise bad_request(f"{param} is {asked}; use 1 or more", param)
    if asked > left:
        raise context_exceeded(num_prompt, asked, info, param)
    return asked
