"""The front's end of the engine: starts the process, watches it, restarts it, passes events on.

One event loop owns a client; nothing here is thread-safe. Knows no HTTP and no text. Whatever
happens to the engine process, every open request gets an answer: an event or an `EngineGone`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from twinpool.clock import Clock, MonotonicClock
from twinpool.engine import protocol
from twinpool.engine.channel import FrameError, read_frame
from twinpool.engine.launch import EngineLaunch, EngineProcess, Life, RestartPolicy
from twinpool.engine.mailbox import Mailbox, refusal_error
from twinpool.errors import TwinpoolError
from twinpool.scheduling.events import Snapshot
from twinpool.scheduling.plan import TokenArray
from twinpool.scheduling.sampling import SamplingParams

EXIT_WAIT_S = 5.0
LAST_WORDS_S = 1.0


class EngineState(enum.Enum):
    """Where the engine process stands."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class EngineGone(TwinpoolError):
    """The engine is not there, or does not answer."""


class EngineLost(EngineGone):
    """The engine died with a request in flight; what it had done is lost."""


class EngineFailed(TwinpoolError):
    """The engine cannot be had: it never came up, or died too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One request for the engine.

    Attributes:
        prompt: Token ids, int32.
        sampling: How to choose tokens and when to stop.
        namespace: Prefixes are shared within a namespace only.
        boundaries: Depths in the prompt that later prompts are likely to repeat.
    """

    prompt: TokenArray
    sampling: SamplingParams
    namespace: str = ""
    boundaries: tuple[int, ...] = ()


def _ignore(_message: protocol.Loading | protocol.Log) -> None:
    return None


def _boot_error(life: Life) -> TwinpoolError:
    """Return the error of an engine that never came up: its own where it could name it."""
    if life.fatal is not None and life.fatal.kind != "internal":
        return refusal_error(life.fatal)
    return EngineFailed(life.describe())


class EngineClient:
    """Owns the engine process and the requests in flight.

    Args:
        launch: How to start the process.
        policy: How often to start it again.
        on_message: Gets what the engine says of its loading and its log lines.
        clock: Measures how long an engine lived.
        spawn: Starts the process.
    """

    def __init__(
        self,
        launch: EngineLaunch,
        *,
        policy: RestartPolicy | None = None,
        on_message: Callable[[protocol.Loading | protocol.Log], None] = _ignore,
        clock: Clock | None = None,
        spawn: Callable[[EngineLaunch], Awaitable[EngineProcess]] = EngineProcess.spawn,
    ) -> None:
        self._launch = launch
        self._spawn = spawn
        self._policy = policy or RestartPolicy()
        self._on_message = on_message
        self._clock = clock or MonotonicClock()
        self._state = EngineState.STARTING
        self._info: protocol.EngineFacts | None = None
        self._snapshot: Snapshot | None = None
        self._process: EngineProcess | None = None
        self._mailboxes: dict[int, Mailbox] = {}
        self._questions: dict[int, asyncio.Future[Snapshot | bool]] = {}
        self._numbers = itertools.count(1)
        self._stop_asked = asyncio.Event()
        self._first_ready = asyncio.Event()
        self.restarts = 0

    # ---- what others may ask

    @property
    def state(self) -> EngineState:
        """Where the process stands."""
        return self._state

    @property
    def info(self) -> protocol.EngineFacts | None:
        """What the last engine that was ready said of itself."""
        return self._info

    @property
    def pid(self) -> int | None:
        """Process id of the engine, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def num_in_flight(self) -> int:
        """Requests that are submitted and have not ended."""
        return len(self._mailboxes)

    @property
    def last_snapshot(self) -> Snapshot | None:
        """The last snapshot of the engine that runs, however old; None when there is none."""
        return self._snapshot

    async def wait_ready(self) -> protocol.EngineFacts:
        """Wait until the engine is ready for the first time; return what it is."""
        await self._first_ready.wait()
        assert self._info is not None, "set together with the event"
        return self._info

    def mailbox(self) -> Mailbox:
        """Return an empty mailbox, owned by the caller, who must close it."""
        return Mailbox(self._abandon)

    def submit(self, submissions: Mapping[int, Submission], mailbox: Mailbox) -> None:
        """Send requests to the engine.

        Args:
            submissions: By the positions under which their events will come.
            mailbox: Where their events go.

        Raises:
            EngineGone: If no engine is ready.
        """
        if self._state is not EngineState.READY:
            raise EngineGone(
                f"the engine is {self._state.value}", hint="wait until GET /ready answers 200"
            )
        for position, submission in submissions.items():
            request_id = next(self._numbers)
            mailbox.expect(request_id, position)
            self._mailboxes[request_id] = mailbox
            self._send(
                protocol.Submit(
                    request_id,
                    np.ascontiguousarray(submission.prompt, dtype="<i4").tobytes(),
                    submission.sampling,
                    submission.namespace,
                    submission.boundaries,
                )
            )

    async def flush(self, timeout_s: float = 30.0) -> bool:
        """Drop the prefix cache.

        Returns:
            False when running requests still hold a part of it.

        Raises:
            EngineGone: If no engine is ready, it dies, or it does not answer in time.
        """
        return bool(await self._ask(protocol.Flush, timeout_s))

    async def snapshot(self, timeout_s: float = 2.0) -> Snapshot:
        """Ask for a fresh snapshot; it comes at the end of the step that is running.

        Raises:
            EngineGone: If no engine is ready, it dies, or it does not answer in time.
        """
        reply = await self._ask(protocol.AskSnapshot, timeout_s)
        assert isinstance(reply, Snapshot), "AskSnapshot is answered by a snapshot"
        return reply

    # ---- life of the process

    async def run(self) -> None:
        """Start the engine and keep it running until `stop`.

        Raises:
            TwinpoolError: Why the engine refused to come up.
            EngineFailed: If it died coming up, or died more often than the policy allows.
        """
        restart = 0
        try:
            while not self._stop_asked.is_set():
                life = await self._live_once()
                if self._stop_asked.is_set():
                    return
                if self._info is None:
                    raise _boot_error(life)
                if life.was_ready_s is not None and life.was_ready_s >= self._policy.stable_s:
                    restart = 0
                restart += 1
                if restart > self._policy.max_restarts:
                    raise EngineFailed(
                        f"{life.describe()}; given up after {restart - 1} restarts in a row"
                    )
                await self._pause_before(restart, life)
        finally:
            self._state = EngineState.STOPPED

    async def _pause_before(self, restart: int, life: Life) -> None:
        delay_s = self._policy.delay_s(restart)
        text = f"{life.describe()}; restart {restart} in {delay_s:g} s"
        self._on_message(protocol.Log(text, "error"))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_asked.wait(), delay_s)
        self.restarts += 1

    async def stop(self, grace_s: float = EXIT_WAIT_S) -> None:
        """Tell the engine to exit, and kill it when it does not within `grace_s` seconds."""
        self._stop_asked.set()
        if self._process is None:
            return
        process = self._process
        # While it loads it reads nothing, and it has nothing to finish.
        if self._state is EngineState.READY:
            process.send(protocol.Shutdown())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), grace_s)
        process.kill()

    def kill(self) -> None:
        """Kill the process at once and do not start it again."""
        self._stop_asked.set()
        if self._process is not None:
            self._process.kill()

    async def _live_once(self) -> Life:
        """Run one process from its start to its end; fail what was in flight."""
        try:
            process = self._process = await self._spawn(self._launch)
        except OSError as error:
            why = protocol.Fatal("internal", f"the engine process cannot be started: {error}")
            return Life(was_ready_s=None, fatal=why, returncode=None)
        pump = asyncio.ensure_future(self._pump(process.reader))
        exited = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({pump, exited}, return_when=asyncio.FIRST_COMPLETED)
            # Something that the engine started may hold its end open, so an exit counts as an end.
            await asyncio.wait({pump}, timeout=LAST_WORDS_S)
            ready_at_s, fatal = pump.result() if pump.done() else (None, None)
            self._lose_engine()
            await asyncio.wait({exited}, timeout=LAST_WORDS_S)
            process.kill()
            was_ready_s = None if ready_at_s is None else self._clock.now() - ready_at_s
            return Life(was_ready_s=was_ready_s, fatal=fatal, returncode=await exited)
        finally:
            pump.cancel()
            exited.cancel()
            process.close()
            self._process = None

    async def _pump(
        self, reader: asyncio.StreamReader
    ) -> tuple[float | None, protocol.Fatal | None]:
        """Pass messages on until the stream ends; say since when it was ready, and last words."""
        ready_at_s = None
        while (payload := await self._next_frame(reader)) is not None:
            try:
                message = protocol.decode_from_engine(payload)
            except msgspec.MsgspecError as error:
                return ready_at_s, protocol.Fatal("internal", f"unreadable message: {error}")
            if isinstance(message, protocol.Fatal):
                return ready_at_s, message
            if isinstance(message, protocol.Ready):
                ready_at_s = self._clock.now()
            self._act(message)
        return ready_at_s, None

    @staticmethod
    async def _next_frame(reader: asyncio.StreamReader) -> bytes | None:
        try:
            return await read_frame(reader)
        except FrameError:
            return None  # the stream cannot be read on: the same as its end

    def _act(self, message: protocol.FromEngine) -> None:
        match message:
            case protocol.StepDone():
                for event in message.events:
                    mailbox = self._mailboxes.get(event.request_id)
                    if mailbox is None:
                        continue  # aborted while the step ran
                    if event.finish_reason is not None:
                        del self._mailboxes[event.request_id]
                    mailbox.put(event)
            case protocol.Accepted():
                if (mailbox := self._mailboxes.get(message.request_id)) is not None:
                    mailbox.accept(message.request_id)
            case protocol.Rejected():
                if (mailbox := self._mailboxes.pop(message.request_id, None)) is not None:
                    mailbox.reject(message)
            case protocol.SnapshotReply():
                self._snapshot = message.snapshot
                self._answer(message.ref, message.snapshot)
            case protocol.Flushed():
                self._answer(message.ref, message.is_clean)
            case protocol.Ready():
                self._info = message.info
                self._state = EngineState.READY
                self._first_ready.set()
            case protocol.Loading() | protocol.Log():
                self._on_message(message)
            case protocol.Fatal():
                raise AssertionError("the pump ends at a Fatal")

    def _lose_engine(self) -> None:
        """Answer everybody who waits for an engine that is gone; why it went is for the log."""
        if self._state is EngineState.READY:
            self._state = EngineState.RESTARTING
        # The next engine counts from zero; what this one had is no longer so.
        self._snapshot = None
        gone = EngineLost("the engine died with this request in flight", hint="send it again")
        mailboxes = list(dict.fromkeys(self._mailboxes.values()))
        self._mailboxes.clear()
        for mailbox in mailboxes:
            mailbox.fail(gone)
        questions = list(self._questions.values())
        self._questions.clear()
        for future in questions:
            if not future.done():
                future.set_exception(gone)

    def _abandon(self, request_ids: tuple[int, ...]) -> None:
        alive = tuple(n for n in request_ids if self._mailboxes.pop(n, None) is not None)
        if alive:
            self._send(protocol.Abort(alive))

    async def _ask(
        self, question: type[protocol.Flush] | type[protocol.AskSnapshot], timeout_s: float
    ) -> Snapshot | bool:
        if self._state is not EngineState.READY:
            raise EngineGone(f"the engine is {self._state.value}")
        ref = next(self._numbers)
        future: asyncio.Future[Snapshot | bool] = asyncio.get_running_loop().create_future()
        self._questions[ref] = future
        self._send(question(ref))
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise EngineGone(f"the engine did not answer within {timeout_s:g} s") from None
        finally:
            self._questions.pop(ref, None)

    def _answer(self, ref: int, answer: Snapshot | bool) -> None:
        future = self._questions.get(ref)
        if future is not None and not future.done():
            future.set_result(answer)

    def _send(self, message: protocol.ToEngine) -> None:
        # A process that is gone reads nothing; the pump sees its end and answers for it.
        if self._process is not None:
            self._process.send(message)
