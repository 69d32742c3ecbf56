"""Request bodies at the edge: what clients may send, with types checked strictly.

Unknown fields pass, wrong types do not. Ranges that sampling knows are checked there; what needs
the tokenizer or the model is checked in the routes.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# JSON has integers of any length. Checks behind the edge compare with floats and print what they
# refuse, and neither works for a number of a thousand digits. This is beyond every field's range.
Int = Annotated[int, Field(gt=-(10**30), lt=10**30)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class StreamOptions(_Body):
    """What a stream carries besides its text."""

    include_usage: bool | None = None


class SamplingBody(_Body):
    """Fields that chat and completions share; None means "not sent"."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Int | None = None
    n: Int | None = None
    max_tokens: Int | None = None
    min_tokens: Int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    response_format: dict[str, Any] | None = None
    user: str | None = None


class CompletionBody(SamplingBody):
    """`POST /v1/completions`.

    `prompt` is checked in `prompts`, where a message can say more than a failed union.
    """

    prompt: Any = None
    echo: bool | None = None
    logprobs: Int | None = None
    best_of: Int | None = None
    suffix: str | None = None


class ChatMessage(_Body):
    """One message; fields that a template may read pass through."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(SamplingBody):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=65536)
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class TokenizeBody(_Body):
    """`POST /v1/tokenize`: a text, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(_Body):
    """`POST /v1/detokenize`."""

    model: str | None = None
    tokens: list[int]
