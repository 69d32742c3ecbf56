"""How the engine process is started, how often again, and how it ended.

Knows the command and the socket pair, no message but the first, and no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from dataclasses import dataclass, field

from twinpool.engine import protocol
from twinpool.engine.channel import pack_frame

STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often a dead engine is started again.

    Attributes:
        max_restarts: Restarts in a row before the client gives up.
        first_delay_s: Wait before the first one; it doubles from one to the next.
        max_delay_s: The longest wait.
        stable_s: An engine that was ready this long starts the count anew.
    """

    max_restarts: int = 5
    first_delay_s: float = 0.5
    max_delay_s: float = 10.0
    stable_s: float = 60.0

    def delay_s(self, restart: int) -> float:
        """Seconds to wait before the n-th restart in a row, from 1."""
        return float(min(self.max_delay_s, self.first_delay_s * 2.0 ** (restart - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaunch:
    """How to start the process.

    Attributes:
        settings: What `Start` carries.
        command: The program; `--fd N` is appended.
        environment: Variables on top of the front's own.
    """

    settings: bytes
    command: tuple[str, ...] = (sys.executable, "-m", "twinpool.engine.worker")
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How one engine process ended.

    Attributes:
        was_ready_s: Seconds for which it was ready; None when it never was.
        fatal: Its last words, if it had any.
        returncode: Its exit code; minus the signal that killed it.
    """

    was_ready_s: float | None
    fatal: protocol.Fatal | None
    returncode: int | None

    def describe(self) -> str:
        """Say how it ended, for a log line or an error."""
        if self.fatal is not None:
            return self.fatal.message
        if self.returncode is not None and self.returncode < 0:
            return f"the engine process was killed by signal {-self.returncode}"
        return f"the engine process ended with code {self.returncode}"


class EngineProcess:
    """One running engine process and the front's end of its socket.

    Args:
        process: The process; owned from here on.
        reader: Its frames.
        writer: Where frames for it go.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self.reader = reader
        self._writer = writer

    @classmethod
    async def spawn(cls, launch: EngineLaunch) -> EngineProcess:
        """Start the process and send it `Start`.

        Raises:
            OSError: If the program cannot be run.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # Its stray prints go where logs go: a server's stdout is not for them.
                process = await asyncio.create_subprocess_exec(
                    *launch.command,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=STDERR,
                    env={**os.environ, **launch.environment},
                )
        except OSError:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        engine = cls(process, reader, writer)
        engine.send(protocol.Start(launch.settings))
        return engine

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: protocol.ToEngine) -> None:
        """Send a message; to a process that is gone it is lost without an error."""
        if not self._writer.is_closing():
            self._writer.write(pack_frame(protocol.encode(message)))

    async def wait(self) -> int:
        """Wait for its end; return its exit code, or minus the signal that killed it."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill it at once, if it still runs."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def close(self) -> None:
        """Kill it and close the socket."""
        self.kill()
        self._writer.close()
