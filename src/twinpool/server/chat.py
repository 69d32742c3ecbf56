"""`POST /v1/chat/completions`: messages in, the assistant's message out.

Knows the form of that route; the template is the engine package's, following the engine is
`endpoint`'s work.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from twinpool.engine.protocol import EngineFacts
from twinpool.scheduling.sampling import MAX_LOGPROBS
from twinpool.server.choice import Delta
from twinpool.server.endpoint import AnswerForm, Endpoint, Head
from twinpool.server.errors import bad_request, unsupported
from twinpool.server.generation import Job, PromptJob
from twinpool.server.limits import num_choices, output_budget
from twinpool.server.logprobs import TokenNames, chat_logprobs
from twinpool.server.messages import render_chat
from twinpool.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatReply,
    Usage,
    encode,
)
from twinpool.server.sampling import refuse_unsupported, sampling_of
from twinpool.server.schema import ChatBody
from twinpool.server.text import TextTokenizer


class ChatEndpoint(Endpoint[ChatBody]):
    """The chat route."""

    schema = ChatBody
    id_prefix = "chatcmpl"

    async def plan(self, body: ChatBody, info: EngineFacts, space: str) -> Job:
        """Check the body and render the messages."""
        _refuse(body)
        service = self._service
        choices = num_choices(body.n, service.limits)
        service.check_room(choices, info)
        tools = service.require_text("chat", "messages")
        chat = await render_chat(
            tools,
            body.messages,
            body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt is not False,
        )
        asked, param = body.max_completion_tokens, "max_completion_tokens"
        if asked is None:
            asked, param = body.max_tokens, "max_tokens"
        budget = output_budget(asked, None, info, num_prompt=len(chat.tokens), param=param)
        sampling = sampling_of(
            body, info, service.limits, max_tokens=budget, logprobs=_num_logprobs(body)
        )
        prompt = PromptJob(tokens=chat.tokens, sampling=sampling, boundaries=chat.boundaries)
        return Job(
            prompts=(prompt,),
            num_choices=choices,
            namespace=space,
            skip_special_tokens=body.skip_special_tokens is not False,
        )

    def form(self, body: ChatBody, job: Job, head: Head) -> AnswerForm:
        """Return the chat form."""
        tools = self._service.text
        return ChatForm(body, job, head, None if tools is None else tools.tokenizer)


class ChatForm:
    """Writes chat completions, whole and in chunks.

    Args:
        body: The request.
        job: Its prompt.
        head: What every part carries.
        tokenizer: For the names of tokens.
    """

    def __init__(
        self, body: ChatBody, job: Job, head: Head, tokenizer: TextTokenizer | None
    ) -> None:
        self._job = job
        self._head = head
        self._names = TokenNames(tokenizer)
        self._has_ids = bool(body.return_token_ids)
        self._has_logprobs = bool(body.logprobs)
        options = body.stream_options
        self._usage = None if options is not None and options.include_usage else UNSET

    def opening(self) -> bytes:
        """Return one event per choice that says who speaks."""
        parts = []
        for index in range(self._job.num_choices):
            choice = ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))
            prompt_ids = self._job.prompts[0].tokens if self._has_ids and index == 0 else UNSET
            parts.append(self._chunk([choice], prompt_ids))
        return b"".join(b"data: " + part + b"\n\n" for part in parts)

    def chunk(self, index: int, delta: Delta) -> bytes | None:
        """Return one chunk."""
        shows_ids = self._has_ids and bool(delta.tokens)
        if not (delta.text or shows_ids or delta.logprobs or delta.finish_reason):
            return None
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(content=delta.text) if delta.text else ChatDelta(),
            logprobs=self._logprobs_of(delta),
            finish_reason=delta.finish_reason,
            stop_reason=UNSET if delta.finish_reason is None else delta.stop_reason,
            token_ids=delta.tokens if self._has_ids else UNSET,
        )
        return self._chunk([choice])

    def usage_chunk(self, usage: Usage) -> bytes:
        """Return the chunk without choices that carries the counts."""
        head = self._head
        return encode(
            ChatChunk(id=head.id, created=head.created, model=head.model, choices=[], usage=usage)
        )

    def whole(self, choices: list[Delta], usage: Usage) -> bytes:
        """Return the whole answer."""
        head = self._head
        return encode(
            ChatCompletion(
                id=head.id,
                created=head.created,
                model=head.model,
                usage=usage,
                prompt_token_ids=self._job.prompts[0].tokens if self._has_ids else UNSET,
                choices=[
                    ChatChoice(
                        index=index,
                        message=ChatReply(content=delta.text),
                        logprobs=self._logprobs_of(delta),
                        finish_reason=delta.finish_reason,
                        stop_reason=delta.stop_reason,
                        token_ids=delta.tokens if self._has_ids else UNSET,
                    )
                    for index, delta in enumerate(choices)
                ],
            )
        )

    def _chunk(self, choices: list[ChatChunkChoice], prompt_ids: Any = UNSET) -> bytes:
        head = self._head
        return encode(
            ChatChunk(
                id=head.id,
                created=head.created,
                model=head.model,
                choices=choices,
                usage=self._usage,
                prompt_token_ids=prompt_ids,
            )
        )

    def _logprobs_of(self, delta: Delta) -> ChatLogprobs | None:
        return chat_logprobs(delta.logprobs, self._names) if self._has_logprobs else None


def _num_logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise bad_request("top_logprobs goes with logprobs: true only", "top_logprobs")
        return None
    count = body.top_logprobs or 0
    if not 0 <= count <= MAX_LOGPROBS:
        raise bad_request(
            f"top_logprobs is {count}; use a value from 0 to {MAX_LOGPROBS}", "top_logprobs"
        )
    return count


def _refuse(body: ChatBody) -> None:
    refuse_unsupported(body)
    if body.tools and body.tool_choice != "none":
        raise unsupported("tools", "tools", "leave them out, or send tool_choice: 'none'")
    if body.tool_choice not in (None, "none", "auto"):
        raise unsupported("tool_choice", "tool_choice", "leave it out, or send 'none'")
    if body.functions or body.function_call not in (None, "none", "auto"):
        raise unsupported("functions", "functions", "leave them out")
    if body.audio is not None or any(kind != "text" for kind in body.modalities or ()):
        raise unsupported("a modality besides text", "modalities", "send ['text']")
    if body.continue_final_message:
        raise unsupported("continue_final_message", "continue_final_message", "use /v1/completions")
