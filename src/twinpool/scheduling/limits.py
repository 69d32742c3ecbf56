"""Limits: what bounds a step and a request; knows no scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds a step and a request.

    Attributes:
        max_running_requests: Requests that may run at once, 1 or more.
        chunk_tokens: Prefill tokens of one step at most, 1 or more; decodes come on top.
        context_length: Tokens of one request at most, prompt and output.
        admit_tokens: Once a step has so many prefill tokens no further request is admitted to it;
            None: `chunk_tokens`. It matters where chunks are longer than that.
        min_awaited_tokens: A request waits for a running prefill when that will leave it at least
            this many tokens.
        max_expected_tokens: Output that a running request is expected to need is counted up to
            this.
    """

    max_running_requests: int
    chunk_tokens: int
    context_length: int
    admit_tokens: int | None = None
    min_awaited_tokens: int = 32
    max_expected_tokens: int = 4096

    def __post_init__(self) -> None:
        if self.admit_tokens is None:
            object.__setattr__(self, "admit_tokens", self.chunk_tokens)
        for name in (
            "max_running_requests",
            "chunk_tokens",
            "context_length",
            "admit_tokens",
            "min_awaited_tokens",
            "max_expected_tokens",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="use 1 or more")
