"""One request's way through the engine: submit, follow, count, and give up when told to.

Knows neither JSON nor HTTP; the answer forms turn its deltas into what clients read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np

from twinpool.clock import Clock
from twinpool.engine.client import EngineClient, Submission
from twinpool.engine.protocol import TokenEvent
from twinpool.scheduling.sampling import SamplingParams
from twinpool.server.choice import Choice, Delta
from twinpool.server.responses import PromptTokensDetails, Usage
from twinpool.server.sampling import choice_sampling
from twinpool.server.text import GrowingText, TextTokenizer
from twinpool.telemetry.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptJob:
    """One prompt, ready for the engine.

    Attributes:
        tokens: Its token ids.
        sampling: Of its first choice.
        text: What `echo` repeats; None where the tokens are to be decoded.
        boundaries: Depths that later prompts are likely to repeat.
    """

    tokens: list[int]
    sampling: SamplingParams
    text: str | None = None
    boundaries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that one HTTP request wants generated.

    Attributes:
        prompts: At least one.
        num_choices: Choices of each prompt.
        namespace: Where prefixes are shared.
        skip_special_tokens: Leave special tokens out of the text.
        is_scored_only: No output is wanted, only the prompt's logprobs.
    """

    prompts: tuple[PromptJob, ...]
    num_choices: int = 1
    namespace: str = ""
    skip_special_tokens: bool = True
    is_scored_only: bool = False


@dataclass(slots=True)
class _Times:
    first_s: float = 0.0
    last_s: float = 0.0
    is_first_seen: bool = field(default=False)


class Generation:
    """Follows the choices of one HTTP request; use it as a context manager.

    Args:
        client: The engine.
        job: What is wanted. Choices are numbered prompt by prompt.
        tokenizer: None when the server has none; texts stay empty then.
        recorder: Gets the latencies.
        clock: Measures them.
        arrived_s: When the HTTP request came, on `clock`.
        eos_token_ids: The model's end tokens.
    """

    def __init__(
        self,
        client: EngineClient,
        job: Job,
        *,
        tokenizer: TextTokenizer | None,
        recorder: Recorder,
        clock: Clock,
        arrived_s: float,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self._client = client
        self._job = job
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._clock = clock
        self._arrived_s = arrived_s
        self._eos = eos_token_ids
        count = len(job.prompts) * job.num_choices
        self._choices = [self._choice(self.prompt_of(n)) for n in range(count)]
        self._times = [_Times() for _ in range(count)]
        self._mailbox = client.mailbox()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mailbox.close()

    @property
    def num_choices(self) -> int:
        """Choices in all, over every prompt."""
        return len(self._choices)

    def prompt_of(self, index: int) -> PromptJob:
        """Return the prompt of a choice."""
        return self._job.prompts[index // self._job.num_choices]

    async def start(self) -> None:
        """Hand each prompt's first choice to the engine and wait until it has taken them.

        The other choices follow when the first one has its first token: then the prompt is in the
        prefix cache, and is computed once and not `n` times.

        Raises:
            TwinpoolError: What the engine refused one with, or that it is gone.
        """
        per_prompt = self._job.num_choices
        self._submit(range(0, len(self._choices), per_prompt))
        await self._mailbox.accepted()

    async def deltas(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Yield what has come since, as `(choice, delta)`, until every choice has ended.

        Raises:
            TwinpoolError: If the engine refuses a choice, or is gone.
            ApiError: If a choice ended with an error.
        """
        per_prompt = self._job.num_choices
        while events := await self._mailbox.get():
            batch = []
            for index, event in events:
                is_first_token = not self._times[index].is_first_seen
                batch.append((index, self._take(index, event)))
                if is_first_token and index % per_prompt == 0:
                    self._submit(range(index + 1, index + per_prompt))
            yield batch

    def _submit(self, indices: range) -> None:
        submissions = {}
        for index in indices:
            prompt = self.prompt_of(index)
            submissions[index] = Submission(
                prompt=np.asarray(prompt.tokens, dtype=np.int32),
                sampling=choice_sampling(prompt.sampling, index % self._job.num_choices),
                namespace=self._job.namespace,
                boundaries=prompt.boundaries,
            )
        self._client.submit(submissions, self._mailbox)

    def usage(self) -> Usage:
        """Return the token counts so far."""
        prompt_tokens = sum(len(prompt.tokens) for prompt in self._job.prompts)
        completion_tokens = sum(choice.num_tokens for choice in self._choices)
        # The choices of a prompt meet each other's prefix in the cache; that is no saving of the
        # client's, so the first one speaks for all.
        first_choices = self._choices[:: self._job.num_choices]
        cached_tokens = sum(choice.cached_tokens for choice in first_choices)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens),
        )

    def _choice(self, prompt: PromptJob) -> Choice:
        text = None
        if self._tokenizer is not None:
            text = GrowingText(
                self._tokenizer.detokenizer(skip_special_tokens=self._job.skip_special_tokens),
                prompt.sampling.stop_strings,
            )
        return Choice(text, self._eos, is_scored_only=self._job.is_scored_only)

    def _take(self, index: int, event: TokenEvent) -> Delta:
        if event.queue_s is not None:
            self._recorder.queued(event.queue_s)
        delta = self._choices[index].take(event)
        times = self._times[index]
        times.last_s = self._clock.now()
        if not times.is_first_seen:
            times.is_first_seen = True
            times.first_s = times.last_s
            self._recorder.first_token(times.first_s - self._arrived_s)
        if event.finish_reason is not None:
            self._recorder.finished(
                total_s=times.last_s - self._arrived_s,
                after_first_s=times.last_s - times.first_s,
                num_tokens=self._choices[index].num_tokens,
            )
        return delta
