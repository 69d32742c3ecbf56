"""Server-sent events, and giving up the moment the client is gone.

Knows ASGI messages and nothing of what is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.types import Message, Receive, Send

from twinpool.server.errors import ApiError

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies that buffer would make a stream arrive in one piece.
    (b"x-accel-buffering", b"no"),
]


def event(payload: bytes) -> bytes:
    """Return the event that carries a JSON payload."""
    return b"data: " + payload + b"\n\n"


async def send_events(
    parts: AsyncIterator[bytes], send: Send, headers: list[tuple[bytes, bytes]]
) -> None:
    """Send a stream of events; an error becomes its last event.

    Args:
        parts: Ready-made events; several may come in one part. `[DONE]` is theirs to send, so
            that it only follows an answer that is whole.
        send: The ASGI channel.
        headers: Headers besides those of a stream.
    """
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS + headers})
    try:
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except ApiError as error:
        last = event(error.encode())
        await send({"type": "http.response.body", "body": last, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_disconnected(work: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Do something for a client, and cancel it when the client goes away.

    Args:
        work: What to do; its body must have been read already.
        receive: The ASGI channel on which a disconnect is told.

    Returns:
        False when the client went away before the work was done.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for each in (task, watcher):
            each.cancel()
        for each in (task, watcher):
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await each


async def _disconnected(receive: Receive) -> None:
    message: Message = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()
