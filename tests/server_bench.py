"""The whole front in one process: application, engine client, and the fake engine in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

import fake_engine
from fake_text import text_tools
from twinpool.engine import protocol
from twinpool.engine.channel import BlockingChannel
from twinpool.engine.client import EngineClient
from twinpool.engine.launch import EngineLaunch, EngineProcess
from twinpool.engine.worker import serve_channel
from twinpool.server.app import build_app
from twinpool.server.auth import KeyRing
from twinpool.server.limits import Limits
from twinpool.server.service import Service

MODEL = "tiny-hybrid"


class ThreadEngine(EngineProcess):
    """An engine in a thread, behind the same socket."""

    def __init__(self, thread: threading.Thread, theirs: BlockingChannel, streams: Any) -> None:
        self.reader, self._writer = streams
        self._thread = thread
        self._theirs = theirs

    @classmethod
    async def spawn(cls, launch: EngineLaunch) -> ThreadEngine:
        ours, far = socket.socketpair()
        theirs = BlockingChannel(far)
        thread = threading.Thread(target=serve_channel, args=(theirs, fake_engine.build))
        thread.start()
        engine = cls(thread, theirs, await asyncio.open_unix_connection(sock=ours))
        engine.send(protocol.Start(launch.settings))
        return engine

    @property
    def pid(self) -> int:
        return 0

    async def wait(self) -> int:
        await asyncio.to_thread(self._thread.join)
        self._theirs.close()
        return 0

    def kill(self) -> None:
        self._theirs.close()


class Bench:
    """What a test of the front needs."""

    def __init__(self, service: Service, http: httpx.AsyncClient) -> None:
        self.service = service
        self.http = http

    async def completion(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, **body})

    async def chat(self, text: str = "hello", **body: Any) -> httpx.Response:
        default = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        return await self.http.post("/v1/chat/completions", json={**default, **body})

    async def events(self, path: str, **body: Any) -> list[Any]:
        """Return the events of a stream; `[DONE]` as it is, the others parsed."""
        response = await self.http.post(path, json={"model": MODEL, "stream": True, **body})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        parts = response.text.split("\n\n")
        assert parts.pop() == ""
        return [_event(part) for part in parts]


def _event(part: str) -> Any:
    assert part.startswith("data: ")
    payload = part.removeprefix("data: ")
    return payload if payload == "[DONE]" else json.loads(payload)


@contextlib.asynccontextmanager
async def bench(
    *,
    limits: Limits | None = None,
    keys: tuple[str, ...] = (),
    engine: dict[str, Any] | None = None,
    served_name: str | None = None,
    has_text: bool = True,
    is_up: bool = True,
) -> AsyncIterator[Bench]:
    """Run a front; the engine is ready when it is handed out, unless `is_up` is false."""
    settings = {**(engine or {}), "skip_tokenizer": not has_text}
    client = EngineClient(fake_engine.launch(**settings), spawn=ThreadEngine.spawn)
    service = Service(
        client=client,
        limits=limits or Limits(),
        keys=KeyRing(keys),
        served_name=served_name,
        skip_tokenizer=not has_text,
        text=text_tools() if has_text else None,
    )
    task = asyncio.create_task(client.run()) if is_up else None
    transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://front") as http:
        try:
            if is_up:
                await asyncio.wait_for(client.wait_ready(), 20)
            yield Bench(service, http)
        finally:
            if task is not None:
                await client.stop()
                await asyncio.wait_for(task, 20)


def run(test: Callable[[Bench], Awaitable[None]], **options: Any) -> None:
    """Run one test on a bench of its own."""

    async def inside() -> None:
        async with asyncio.timeout(30), bench(**options) as made:
            await test(made)

    asyncio.run(inside())
