"""The `prompt` field of completions: one text, many, token ids, or many lists of them.

Checks shapes, counts and ranges; turning text into tokens is left to the caller.
"""

from __future__ import annotations

from twinpool.engine.protocol import EngineFacts
from twinpool.server.errors import bad_request
from twinpool.server.limits import Limits, check_count, context_exceeded

Prompt = str | list[int]


def parse_prompts(prompt: object, limits: Limits, info: EngineFacts) -> list[Prompt]:
    """Return the prompts of a request.

    Args:
        prompt: The field as JSON gave it.
        limits: Upper bounds.
        info: Says which token ids there are, and how many one request may have.

    Raises:
        ApiError: 400 that says what is wrong with it.
    """
    if prompt is None:
        raise bad_request("prompt is missing", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _wrong(f"{type(prompt).__name__}")
    if not prompt:
        raise bad_request("prompt is an empty list", "prompt")
    if _is_int(prompt[0]):
        return [_tokens(prompt, info)]
    check_count(len(prompt), limits.max_prompts, "prompts", "prompt")
    if isinstance(prompt[0], str):
        return [_text(entry) for entry in prompt]
    return [_tokens(entry, info) for entry in prompt]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(entry: object) -> str:
    if not isinstance(entry, str):
        raise _wrong("a list of texts and other things")
    return entry


def _tokens(entry: object, info: EngineFacts) -> list[int]:
    if not isinstance(entry, list):
        raise _wrong("a list that holds neither texts nor token ids")
    if not entry:
        raise bad_request("prompt holds an empty list of token ids", "prompt")
    if len(entry) >= min(info.context_tokens, info.max_request_tokens):
        raise context_exceeded(len(entry), 1, info, "prompt")
    tokens: list[int] = []
    for token in entry:
        if not _is_int(token):
            raise _wrong("a list of token ids and other things")
        if not 0 <= token < info.vocab_size:
            shown = token if abs(token) < 2**64 else "a huge number"
            raise bad_request(
                f"prompt: {shown} is not a token id below {info.vocab_size}", "prompt"
            )
        tokens.append(token)
    return tokens


def _wrong(what: str) -> Exception:
    return bad_request(
        f"prompt is {what}; send a text, a list of texts, token ids, or a list of lists of them",
        "prompt",
    )
