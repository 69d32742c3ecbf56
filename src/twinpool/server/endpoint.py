"""What both generation routes share: read, follow, answer whole or in a stream.

An endpoint is an ASGI application, because it must watch for a disconnect while it works. The
answer's form is its subclass's; knows no prompt.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twinpool.engine.protocol import EngineFacts
from twinpool.errors import TwinpoolError
from twinpool.server.auth import namespace
from twinpool.server.body import read_schema
from twinpool.server.choice import Delta
from twinpool.server.errors import from_twinpool
from twinpool.server.generation import Generation, Job
from twinpool.server.responses import Usage
from twinpool.server.schema import SamplingBody
from twinpool.server.service import Service
from twinpool.server.stream import DONE, event, send_events, unless_disconnected

Body = TypeVar("Body", bound=SamplingBody)


@dataclass(frozen=True, slots=True)
class Head:
    """What every part of an answer carries.

    Attributes:
        id: The request's id.
        created: Unix time.
        model: The served name.
    """

    id: str
    created: int
    model: str


class AnswerForm(Protocol):
    """How one route writes an answer."""

    def opening(self) -> bytes:
        """Return the events that come before any token."""
        ...

    def chunk(self, index: int, delta: Delta) -> bytes | None:
        """Return the JSON of a delta's event; None when it shows nothing."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes:
        """Return the JSON of the last event before `[DONE]`."""
        ...

    def whole(self, choices: list[Delta], usage: Usage) -> bytes:
        """Return the body of an answer that is not streamed."""
        ...


class Endpoint(Generic[Body]):
    """A generation route.

    Args:
        service: What it works with.
    """

    schema: type[Body]
    id_prefix: str

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a client that goes away is given up at once."""
        arrived_s = self._service.clock.now()
        with self._service.active():
            try:
                info = self._service.require_engine()
                self._service.check_active(info)
                request = Request(scope, receive)
                body = await read_schema(request, self.schema, self._service.limits.max_body_bytes)
                await unless_disconnected(
                    self._answer(body, info, request, arrived_s, send), receive
                )
            except ClientDisconnect:
                return  # it went away while it was still sending

    async def plan(self, body: Body, info: EngineFacts, space: str) -> Job:
        """Turn a body into what is wanted of the engine.

        Raises:
            ApiError: 400 for what is wrong with it.
        """
        raise NotImplementedError

    def form(self, body: Body, job: Job, head: Head) -> AnswerForm:
        """Return how the answer is written."""
        raise NotImplementedError

    async def _answer(
        self, body: Body, info: EngineFacts, request: Request, arrived_s: float, send: Send
    ) -> None:
        model = self._service.check_model(body.model, info)
        space = namespace(request.scope.get("key_digest", b""), body.cache_salt)
        try:
            job = await self.plan(body, info, space)
            head = Head(f"{self.id_prefix}-{secrets.token_hex(16)}", int(time.time()), model)
            form = self.form(body, job, head)
            with self._service.generation(job, info, arrived_s) as generation:
                await generation.start()
                if body.stream:
                    options = body.stream_options
                    has_usage = options is not None and bool(options.include_usage)
                    parts = _events(generation, form, has_usage)
                    headers = [(b"x-request-id", head.id.encode())]
                    await send_events(parts, send, headers)
                    return
                payload = await _whole(generation, form)
        except TwinpoolError as error:
            raise from_twinpool(error) from None
        response = Response(
            payload, media_type="application/json", headers={"X-Request-Id": head.id}
        )
        await response(request.scope, request.receive, send)


async def _whole(generation: Generation, form: AnswerForm) -> bytes:
    choices = [Delta() for _ in range(generation.num_choices)]
    async for batch in generation.deltas():
        for index, delta in batch:
            choices[index].extend(delta)
    return form.whole(choices, generation.usage())


async def _events(
    generation: Generation, form: AnswerForm, has_usage: bool
) -> AsyncIterator[bytes]:
    try:
        if opening := form.opening():
            yield opening
        async for batch in generation.deltas():
            chunks = (form.chunk(index, delta) for index, delta in batch)
            if part := b"".join(event(chunk) for chunk in chunks if chunk is not None):
                yield part
    except TwinpoolError as error:
        raise from_twinpool(error) from None
    tail = event(form.usage_chunk(generation.usage())) if has_usage else b""
    yield tail + DONE
