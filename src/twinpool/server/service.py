"""What every route works with: the engine client, the text tools, limits, names, counters.

One object, handed to the routes at construction. Knows no HTTP but its errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TypeVar

from twinpool.clock import Clock, MonotonicClock
from twinpool.engine.client import EngineClient, EngineState
from twinpool.engine.protocol import EffectiveValue, EngineFacts
from twinpool.server.auth import KeyRing
from twinpool.server.errors import ApiError, unavailable, unsupported
from twinpool.server.generation import Generation, Job
from twinpool.server.limits import Limits, check_count
from twinpool.server.text import ChatRenderer, TextTokenizer
from twinpool.telemetry.recorder import Recorder

DEFAULT_NAME = "default"
LONG_TEXT_CHARS = 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TextTools:
    """The front's share of the tokenizer.

    Attributes:
        tokenizer: Text to tokens and back.
        chat: Renders messages; None when the model has no chat template.
    """

    tokenizer: TextTokenizer
    chat: ChatRenderer | None = None


@dataclass(slots=True, kw_only=True)
class Service:
    """Shared by every route; changed only where noted.

    Attributes:
        client: The engine.
        limits: Upper bounds of one request.
        keys: Who may ask.
        served_name: The name that answers carry; None takes the model's folder name.
        settings: Effective server settings, for `/server_info`.
        skip_tokenizer: True when the server was asked to run without a tokenizer.
        recorder: What the front counts.
        clock: Measures latencies.
        text: Set once the engine has said where the tokenizer is.
        is_draining: Set when the server is about to stop; new requests get 503.
        num_active: Generation requests that are being answered.
        created_s: Unix time of the start, for `/v1/models`.
    """

    client: EngineClient
    limits: Limits = field(default_factory=Limits)
    keys: KeyRing = field(default_factory=lambda: KeyRing(()))
    served_name: str | None = None
    settings: tuple[EffectiveValue, ...] = ()
    skip_tokenizer: bool = False
    recorder: Recorder = field(default_factory=Recorder)
    clock: Clock = field(default_factory=MonotonicClock)
    text: TextTools | None = None
    is_draining: bool = False
    num_active: int = 0
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_ready(self) -> bool:
        """True when a request that comes now would be served."""
        is_up = self.client.state is EngineState.READY
        return is_up and not self.is_draining and (self.skip_tokenizer or self.text is not None)

    @property
    def is_alive(self) -> bool:
        """True while the engine is ready, or comes up for the first time."""
        return self.client.state in (EngineState.READY, EngineState.STARTING)

    def require_engine(self) -> EngineFacts:
        """Return what the engine is.

        Raises:
            ApiError: 503 while it is not ready, or the server is stopping.
        """
        if self.is_draining:
            raise unavailable("the server is stopping", "draining")
        info = self.client.info
        if info is None or self.client.state is not EngineState.READY:
            raise unavailable(f"the engine is {self.client.state.value}", "engine_unavailable")
        if not self.is_ready:
            raise unavailable("the tokenizer is being loaded", "engine_unavailable")
        return info

    def require_text(self, what: str, param: str) -> TextTools:
        """Return the text tools.

        Raises:
            ApiError: 400 when the server runs without a tokenizer.
        """
        if self.text is None:
            raise unsupported(
                what, param, "the server runs without a tokenizer: send token ids as the prompt"
            )
        return self.text

    def names(self, info: EngineFacts) -> tuple[str, ...]:
        """Return the names that requests may call the model by, the served one first."""
        folder = PurePath(info.model).name or info.model
        names = (self.served_name or folder, folder, info.model, DEFAULT_NAME)
        return tuple(dict.fromkeys(names))

    def check_model(self, asked: str | None, info: EngineFacts) -> str:
        """Return the name that the answer carries.

        Raises:
            ApiError: 404 when another model is asked for.
        """
        names = self.names(info)
        if asked is not None and asked not in names:
            raise ApiError(
                404,
                f"The model {asked[:100]!r} does not exist; this server has {names[0]!r}",
                param="model",
                code="model_not_found",
            )
        return names[0]

    def check_room(self, num_requests: int, info: EngineFacts) -> None:
        """Refuse what the queue has no room for.

        Raises:
            ApiError: 503 with Retry-After; 400 for what would not fit an empty one.
        """
        most = self._most_requests(info)
        check_count(num_requests, most, "choices of all prompts together", "n")
        self._check_room(self.client.num_in_flight, num_requests, info)

    def check_active(self, info: EngineFacts) -> None:
        """Refuse an HTTP request before its body is read, when there is no room for any.

        Raises:
            ApiError: 503 with Retry-After.
        """
        # The one that asks is counted already.
        self._check_room(self.num_active - 1, 1, info)

    def _most_requests(self, info: EngineFacts) -> int:
        # How many of them wait is the engine's to know; the sum is exact at any moment.
        return info.max_running_requests + self.limits.max_queue

    def _check_room(self, num_taken: int, num_more: int, info: EngineFacts) -> None:
        if num_taken + num_more > self._most_requests(info):
            raise unavailable(
                f"{num_taken} requests are in flight and {num_more} more do not fit: "
                f"{info.max_running_requests} may run and {self.limits.max_queue} wait",
                "queue_full",
            )

    def generation(self, job: Job, info: EngineFacts, arrived_s: float) -> Generation:
        """Return a generation that is not started yet.

        Raises:
            ApiError: 503 when the queue has no room for it.
        """
        self.check_room(len(job.prompts) * job.num_choices, info)
        return Generation(
            self.client,
            job,
            tokenizer=None if self.text is None else self.text.tokenizer,
            recorder=self.recorder,
            clock=self.clock,
            arrived_s=arrived_s,
            eos_token_ids=info.eos_token_ids,
        )

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Count a generation request while it is being answered."""
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1


async def off_loop(work: Callable[[], T], num_chars: int) -> T:
    """Do text work, in a thread when it is long enough to hold up other streams.

    Args:
        work: What to do; it must not touch what the event loop's thread changes.
        num_chars: Length of the text that it goes through.
    """
    if num_chars < LONG_TEXT_CHARS:
        return work()
    return await asyncio.to_thread(work)
