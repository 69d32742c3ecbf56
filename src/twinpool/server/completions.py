"""`POST /v1/completions`: texts or token ids in, texts and token ids out.

Knows the form of that route; following the engine is `endpoint`'s work.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from twinpool.engine.protocol import EngineFacts
from twinpool.scheduling.plan import TokenLogprobs
from twinpool.scheduling.sampling import MAX_LOGPROBS
from twinpool.server.choice import Delta
from twinpool.server.endpoint import AnswerForm, Endpoint, Head
from twinpool.server.errors import bad_request, unsupported
from twinpool.server.generation import Job, PromptJob
from twinpool.server.limits import num_choices, output_budget
from twinpool.server.logprobs import CompletionLogprobsForm, TokenNames, joined
from twinpool.server.prompts import Prompt, parse_prompts
from twinpool.server.responses import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Usage,
    encode,
)
from twinpool.server.sampling import refuse_unsupported, sampling_of
from twinpool.server.schema import CompletionBody
from twinpool.server.service import off_loop
from twinpool.server.text import TextTokenizer

DEFAULT_MAX_TOKENS = 16


class CompletionsEndpoint(Endpoint[CompletionBody]):
    """The completions route."""

    schema = CompletionBody
    id_prefix = "cmpl"

    async def plan(self, body: CompletionBody, info: EngineFacts, space: str) -> Job:
        """Check the body, and turn every prompt into tokens."""
        _refuse(body)
        service = self._service
        choices = num_choices(body.n, service.limits)
        prompts = parse_prompts(body.prompt, service.limits, info)
        service.check_room(len(prompts) * choices, info)
        jobs = [await self._prompt_job(body, info, prompt) for prompt in prompts]
        return Job(
            prompts=tuple(jobs),
            num_choices=choices,
            namespace=space,
            skip_special_tokens=body.skip_special_tokens is not False,
            is_scored_only=body.max_tokens == 0,
        )

    def form(self, body: CompletionBody, job: Job, head: Head) -> AnswerForm:
        """Return the completions form."""
        tools = self._service.text
        return CompletionForm(body, job, head, None if tools is None else tools.tokenizer)

    async def _prompt_job(
        self, body: CompletionBody, info: EngineFacts, prompt: Prompt
    ) -> PromptJob:
        tokens = prompt if isinstance(prompt, list) else await self._encode(prompt)
        if not tokens:
            raise bad_request("prompt has no tokens", "prompt")
        budget = output_budget(
            # A prompt is scored by making one token too many, which is dropped.
            1 if body.max_tokens == 0 else body.max_tokens,
            DEFAULT_MAX_TOKENS,
            info,
            num_prompt=len(tokens),
            param="max_tokens",
        )
        sampling = sampling_of(
            body,
            info,
            self._service.limits,
            max_tokens=budget,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
            has_tokenizer=self._service.text is not None,
        )
        text = prompt if isinstance(prompt, str) else None
        return PromptJob(tokens=tokens, sampling=sampling, text=text)

    async def _encode(self, text: str) -> list[int]:
        tokenizer = self._service.require_text("a text prompt", "prompt").tokenizer
        return await off_loop(lambda: tokenizer.encode(text), len(text))


class CompletionForm:
    """Writes completions, whole and in chunks.

    Args:
        body: The request.
        job: Its prompts.
        head: What every part carries.
        tokenizer: None when the server has none; answers then always carry token ids.
    """

    def __init__(
        self, body: CompletionBody, job: Job, head: Head, tokenizer: TextTokenizer | None
    ) -> None:
        self._job = job
        self._head = head
        self._tokenizer = tokenizer
        self._names = TokenNames(tokenizer)
        self._echo = bool(body.echo)
        self._has_ids = bool(body.return_token_ids) or tokenizer is None
        self._has_logprobs = body.logprobs is not None
        options = body.stream_options
        self._usage = None if options is not None and options.include_usage else UNSET
        self._seen: set[int] = set()
        self._logprobs: dict[int, CompletionLogprobsForm] = {}

    def opening(self) -> bytes:
        """Return nothing: completions begin with their first token."""
        return b""

    def chunk(self, index: int, delta: Delta) -> bytes | None:
        """Return one chunk."""
        is_first = index not in self._seen
        self._seen.add(index)
        echoed = self._echoed(index) if is_first and self._echo else ""
        text = echoed + delta.text
        shows_ids = self._has_ids and bool(delta.tokens)
        if not (text or shows_ids or delta.logprobs or delta.finish_reason):
            return None
        choice = self._choice(index, delta, text, is_first=is_first)
        return encode(self._completion([choice], self._usage))

    def usage_chunk(self, usage: Usage) -> bytes:
        """Return the chunk without choices that carries the counts."""
        return encode(self._completion([], usage))

    def whole(self, choices: list[Delta], usage: Usage) -> bytes:
        """Return the whole answer."""
        whole = [
            self._choice(
                index,
                delta,
                (self._echoed(index) if self._echo else "") + delta.text,
                is_first=True,
            )
            for index, delta in enumerate(choices)
        ]
        return encode(self._completion(whole, usage))

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        head = self._head
        return Completion(
            id=head.id, created=head.created, model=head.model, choices=choices, usage=usage
        )

    def _choice(self, index: int, delta: Delta, text: str, *, is_first: bool) -> CompletionChoice:
        prompt_ids = self._prompt(index).tokens if self._has_ids and is_first else UNSET
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=self._logprobs_of(index, delta, is_first=is_first),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=delta.tokens if self._has_ids else UNSET,
            prompt_token_ids=prompt_ids,
        )

    def _logprobs_of(
        self, index: int, delta: Delta, *, is_first: bool
    ) -> CompletionLogprobs | None:
        if not self._has_logprobs:
            return None
        form = self._logprobs.setdefault(index, CompletionLogprobsForm(self._names))
        parts = []
        if self._echo and is_first:
            entries: tuple[TokenLogprobs, ...] = delta.prompt_logprobs or ()
            parts.append(form.prompt(self._prompt(index).tokens, entries))
        parts.append(form.part(delta.logprobs))
        return joined(parts)

    def _prompt(self, index: int) -> PromptJob:
        return self._job.prompts[index // self._job.num_choices]

    def _echoed(self, index: int) -> str:
        prompt = self._prompt(index)
        if prompt.text is not None:
            return prompt.text
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode(
            prompt.tokens, skip_special_tokens=self._job.skip_special_tokens
        )


def _refuse(body: CompletionBody) -> None:
    refuse_unsupported(body)
    if body.suffix is not None:
        raise unsupported("suffix", "suffix", "put everything in the prompt")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported(
            f"best_of {body.best_of}", "best_of", "leave it out, or send the value of n"
        )
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise bad_request(
            f"logprobs is {body.logprobs}; use a value from 0 to {MAX_LOGPROBS}", "logprobs"
        )
    if body.max_tokens == 0 and not body.echo:
        raise bad_request("max_tokens is 0; use 1 or more, or echo: true", "max_tokens")
