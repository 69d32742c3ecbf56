"""Where the events of a few requests wait for the one coroutine that reads them.

Filled by the engine client, read by one consumer on the same event loop. Knows neither the
process nor the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from twinpool.engine import protocol
from twinpool.errors import CapacityError, ConfigError, TwinpoolError


class Mailbox:
    """Events of requests that were submitted together.

    Args:
        abandon: Called at `close` with the requests that have not ended.
    """

    def __init__(self, abandon: Callable[[tuple[int, ...]], None]) -> None:
        self._positions: dict[int, int] = {}
        self._abandon = abandon
        self._unaccepted: set[int] = set()
        self._unfinished: set[int] = set()
        self._events: list[tuple[int, protocol.TokenEvent]] = []
        self._failure: TwinpoolError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Mailbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_finished(self) -> bool:
        """True when every request has ended and every event was read."""
        return not self._unfinished and not self._events

    async def accepted(self) -> None:
        """Wait until the scheduler has taken every request.

        Raises:
            TwinpoolError: What it refused one with, or that the engine is gone.
        """
        while self._unaccepted:
            self._raise_failure()
            await self._wait()
        self._raise_failure()

    async def get(self) -> list[tuple[int, protocol.TokenEvent]]:
        """Wait for events.

        Returns:
            Everything that has come since, as `(position, event)`; empty when all has ended.

        Raises:
            TwinpoolError: If a request was refused, or the engine is gone.
        """
        while not self._events and self._unfinished:
            self._raise_failure()
            await self._wait()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Give up whatever has not ended; a second call does nothing."""
        unfinished = tuple(sorted(self._unfinished))
        self._unfinished = set()
        self._events = []
        if unfinished:
            self._abandon(unfinished)

    # ---- for the client

    def expect(self, request_id: int, position: int) -> None:
        """Expect the events of one more request.

        Args:
            request_id: The engine's number.
            position: What the consumer knows it by.
        """
        self._positions[request_id] = position
        self._unaccepted.add(request_id)
        self._unfinished.add(request_id)

    def accept(self, request_id: int) -> None:
        """Note that the scheduler took a request."""
        self._unaccepted.discard(request_id)
        self._wake()

    def put(self, event: protocol.TokenEvent) -> None:
        """Add an event."""
        self._unaccepted.discard(event.request_id)
        if event.finish_reason is not None:
            self._unfinished.discard(event.request_id)
        self._events.append((self._positions[event.request_id], event))
        self._wake()

    def reject(self, refusal: protocol.Rejected) -> None:
        """Fail with what the scheduler said; the refused request has ended."""
        self._unfinished.discard(refusal.request_id)
        self.fail(refusal_error(refusal))

    def fail(self, error: TwinpoolError) -> None:
        """Fail: the consumer gets the error once it has read what came before."""
        self._failure = self._failure or error
        self._wake()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def refusal_error(refusal: protocol.Rejected | protocol.Fatal) -> TwinpoolError:
    """Return the exception that a refusal or last words stand for."""
    kinds: dict[str, type[TwinpoolError]] = {
        "capacity": CapacityError,
        "config": ConfigError,
        "unsupported_model": ConfigError,
    }
    kind = kinds.get(refusal.kind, TwinpoolError)
    return kind(refusal.message, hint=refusal.hint)
