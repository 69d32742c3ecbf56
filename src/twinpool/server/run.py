"""Running the front: socket, engine process, signals, drain, exit code.

Knows no route. What it prints goes to stderr; it returns when the server has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from twinpool.engine.client import EngineClient
from twinpool.engine.launch import EngineLaunch
from twinpool.engine.protocol import EffectiveValue, EngineFacts
from twinpool.errors import TwinpoolError
from twinpool.server.app import build_app
from twinpool.server.auth import KeyRing
from twinpool.server.console import Console
from twinpool.server.errors import bad_request
from twinpool.server.limits import Limits
from twinpool.server.service import Service, TextTools
from twinpool.settings.fields import fields_of
from twinpool.settings.resolve import Resolved
from twinpool.settings.server import ServerSettings

KEEP_ALIVE_S = 65
CLOSE_WAIT_S = 2
DRAIN_TICK_S = 0.02
MAX_HEADER_BYTES = 64 * 1024

LoadText = Callable[[EngineFacts], TextTools | None]
Say = Callable[[str], None]


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: A name or an address.
        port: 0 takes any free one.

    Raises:
        TwinpoolError: If the address cannot be had.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise TwinpoolError(
            f"cannot listen on {host}: {error.strerror}", hint="give another --host"
        ) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        is_taken = error.errno == errno.EADDRINUSE
        raise TwinpoolError(
            f"port {port} on {host} is {'in use' if is_taken else 'not to be had'}: "
            f"{error.strerror}",
            hint="give another --port (0 takes any free one), or stop what uses it",
        ) from None
    return sock


def shown_address(sock: socket.socket) -> str:
    """Return a socket's own address as people write it: `127.0.0.1:8000`."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return True when only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    resolved: Resolved, launch: EngineLaunch, *, load_text: LoadText, console: Console
) -> None:
    """Run the server until it is told to stop.

    Args:
        resolved: The settings.
        launch: How the engine process is started.
        load_text: Loads the tokenizer once the engine has said where it is.
        console: Shows progress and log lines.

    Raises:
        TwinpoolError: If the port, the engine or the tokenizer cannot be had.
    """
    settings = resolved.server
    sock = bind(settings.host, settings.port)
    console.start(settings.log_level)
    if not settings.api_keys and not is_loopback(settings.host):
        console.say(f"anybody who reaches {settings.host} can use this server: no --api-key")

    async def run() -> None:
        service = build_service(resolved, EngineClient(launch, on_message=console.show))
        front = Front(
            service,
            load_text=load_text,
            drain_timeout_s=settings.drain_timeout_s,
            say=console.say,
        )
        await front.run(sock)

    asyncio.run(run())


def build_service(resolved: Resolved, client: EngineClient) -> Service:
    """Return the service over an engine client, as the settings say."""
    settings = resolved.server
    return Service(
        client=client,
        limits=Limits(
            max_body_bytes=settings.max_body_bytes,
            max_prompts=settings.max_prompts,
            max_choices=settings.max_choices,
            max_stop_strings=settings.max_stop_strings,
            max_queue=settings.max_queue,
        ),
        keys=KeyRing(settings.api_keys),
        served_name=settings.served_model_name,
        skip_tokenizer=resolved.model.skip_tokenizer_init,
        settings=tuple(
            msgspec.convert(row, EffectiveValue)
            for row in resolved.rows()
            if row["name"] in _SERVER_NAMES
        ),
    )


_SERVER_NAMES = frozenset(field.name for field in fields_of(ServerSettings))


class _JsonErrors(H11Protocol):
    """The HTTP protocol, with a nested error for what is no HTTP at all."""

    def send_400_response(self, msg: str) -> None:
        body = bad_request(msg, code="invalid_http").encode()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n"
        )
        self.transport.write(head % len(body) + body)
        self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Front:
    """One run of the server.

    Args:
        service: What the routes work with; its client is started here.
        load_text: Loads the tokenizer once the engine has said where it is.
        drain_timeout_s: Seconds that running requests get after the first signal.
        say: Prints one line for people.
    """

    def __init__(
        self, service: Service, *, load_text: LoadText, drain_timeout_s: float, say: Say
    ) -> None:
        self._service = service
        self._client: EngineClient = service.client
        self._load_text = load_text
        self._drain_timeout_s = drain_timeout_s
        self._say = say
        self._stop = asyncio.Event()
        self._server = _Server(
            uvicorn.Config(
                build_app(service),
                http=_JsonErrors,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_WAIT_S,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            )
        )

    async def run(self, sock: socket.socket) -> None:
        """Serve until a signal, or until the engine cannot be had.

        Args:
            sock: The listening socket; closed at the end.

        Raises:
            TwinpoolError: If the engine or the tokenizer cannot be had.
        """
        self._catch_signals()
        self._say(f"listening on http://{shown_address(sock)}; the engine is starting")
        engine = asyncio.ensure_future(self._client.run())
        http = asyncio.ensure_future(self._server.serve(sockets=[sock]))
        ready = asyncio.ensure_future(self._get_ready(shown_address(sock)))
        stop = asyncio.ensure_future(self._stop.wait())
        tasks = (engine, http, ready, stop)
        try:
            waiting = set(tasks)
            while not stop.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if engine.done() or http.done():
                    break
            await self._drain()
        finally:
            self._server.should_exit = True
            self._client.kill()
            with contextlib.suppress(Exception):
                await http
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _get_ready(self, address: str) -> None:
        """Load the text tools when the engine is ready for the first time, and say so."""
        facts = await self._client.wait_ready()
        if not self._service.skip_tokenizer:
            self._service.text = await asyncio.to_thread(self._load_text, facts)
            # Without text tools only token ids can be served: as if it had been asked for.
            self._service.skip_tokenizer = self._service.text is None
        self._say(f"ready: {self._service.names(facts)[0]} on http://{address}")

    async def _drain(self) -> None:
        """Let running requests finish, up to the limit, then stop the engine."""
        self._service.is_draining = True
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._drain_timeout_s
        while self._service.num_active and loop.time() < deadline_s:
            await asyncio.sleep(DRAIN_TICK_S)
        if self._service.num_active:
            self._say(
                f"{self._service.num_active} requests are cut off: the drain timeout of "
                f"{self._drain_timeout_s:g} s is over"
            )
        await self._client.stop()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._client.kill()
            os._exit(128 + number)
        num_active = self._service.num_active
        self._say(
            f"stopping: {num_active} requests get {self._drain_timeout_s:g} s to finish; "
            "a second signal stops at once"
        )
        self._stop.set()
