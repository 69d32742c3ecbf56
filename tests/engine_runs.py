"""Runs of a whole engine without HTTP: real scheduler, real model, every step audited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from twinpool.engine.assembly import Engine, build_engine
from twinpool.scheduling.events import Arrival, Progress
from twinpool.scheduling.sampling import SamplingParams


def start(folder: Path, **flags: Any) -> Engine:
    """Load an engine over small pools; flags are settings by name."""
    settings = {
        "model_path": str(folder),
        "skip_tokenizer_init": True,
        "pool_memory": "64MiB",
        "max_total_tokens": 4096,
        "max_mamba_cache_size": 64,
        "max_running_requests": 16,
        **flags,
    }
    return build_engine(settings, {}, lambda message: None, decisions=None)


@dataclass
class Answer:
    """What one request gave."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[tuple] = field(default_factory=list)
    prompt_logprobs: tuple = ()
    last: Progress | None = None

    @property
    def bits(self) -> tuple:
        """Everything that must be equal bit for bit."""
        return (tuple(self.tokens), tuple(self.logprobs), self.prompt_logprobs)


def greedy(max_tokens: int, **fields: Any) -> SamplingParams:
    """Greedy sampling with the logprobs of the three best tokens."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=3, **fields)


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams | Sequence[SamplingParams],
    *,
    at_once: bool = True,
    first_id: int = 0,
    **fields: Any,
) -> list[Answer]:
    """Run requests to their end, all at once or one after the other; audits every step."""
    answers = {first_id + index: Answer() for index in range(len(prompts))}
    for index, prompt in enumerate(prompts):
        params = sampling if isinstance(sampling, SamplingParams) else sampling[index]
        engine.scheduler.add(
            Arrival(
                request_id=first_id + index,
                prompt=np.array(prompt, dtype=np.int32),
                sampling=params,
                **fields,
            )
        )
        if not at_once:
            _drain(engine, answers)
    _drain(engine, answers)
    return list(answers.values())


def _drain(engine: Engine, answers: dict[int, Answer]) -> None:
    while engine.scheduler.has_work:
        plan = engine.scheduler.schedule(0.0)
        assert plan is not None
        for event in engine.scheduler.commit(engine.executor.execute(plan), 0.0):
            answer = answers[event.request_id]
            if event.token is not None:
                answer.tokens.append(event.token)
            if event.logprobs is not None:
                answer.logprobs.append(
                    (event.logprobs.token, event.logprobs.logprob, event.logprobs.top)
                )
            if event.prompt_logprobs is not None:
                answer.prompt_logprobs = tuple(
                    (entry.token, entry.logprob, entry.top) for entry in event.prompt_logprobs
                )
            if event.finish_reason is not None:
                answer.last = event
                engine.executor.forget(event.request_id)
        engine.scheduler.audit()
