"""The engine process: a message pump and a step loop over a scheduler and an executor.

Knows nothing of HTTP, text or models: `assembly` builds the engine, the front speaks `protocol`.
The process ends when the front is gone, when it is told to, or with the first step that raises.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable

import msgspec
import numpy as np

from twinpool.clock import Clock, MonotonicClock
from twinpool.engine import protocol
from twinpool.engine.channel import BlockingChannel, FrameError
from twinpool.engine.ports import Build, LoadedEngine, ProgressSink
from twinpool.engine.thrash_watch import ThrashWatch
from twinpool.errors import CapacityError, ConfigError, TwinpoolError, UnsupportedModelError
from twinpool.scheduling.events import Arrival, Progress
from twinpool.scheduling.plan import StepPlan

STUCK_WAIT_S = 0.05
ORPHAN_GRACE_S = 2.0


class FrontGone(Exception):
    """The front's end of the channel is closed."""


class Worker:
    """Runs one engine until it is told to stop.

    Args:
        engine: The loaded engine; the worker's thread is the only one that touches it.
        inbox: Messages of the front in order; None says that the front is gone.
        send: Sends one message; False when the front is gone.
        clock: Where the scheduler's time comes from.
    """

    def __init__(
        self,
        engine: LoadedEngine,
        inbox: queue.SimpleQueue[protocol.ToEngine | None],
        send: Callable[[protocol.FromEngine], bool],
        clock: Clock,
    ) -> None:
        self._scheduler = engine.scheduler
        self._executor = engine.executor
        self._eos = engine.info.eos_token_ids
        self._inbox = inbox
        self._send_message = send
        self._clock = clock
        self._arrived_s: dict[int, float] = {}
        self._queue_s: dict[int, float] = {}
        self._recorder = engine.recorder
        self._thrash_watch = ThrashWatch()

    def run(self) -> None:
        """Serve until `Shutdown` or until the front is gone.

        Raises:
            FrontGone: If the front's end is closed.
            Exception: Whatever a step raises; the engine must not be used after it.
        """
        try:
            self._serve()
        finally:
            if self._recorder is not None:
                self._recorder.close()

    def _serve(self) -> None:
        is_stuck = False
        while True:
            if not self._take_messages(is_stuck=is_stuck):
                return
            is_stuck = self._scheduler.has_work and not self._step()

    def _take_messages(self, *, is_stuck: bool) -> bool:
        """Act on every message that has come; wait for one when there is nothing else to do."""
        has_work = self._scheduler.has_work
        is_idle = not has_work or is_stuck
        while True:
            try:
                message = self._inbox.get(
                    block=is_idle, timeout=STUCK_WAIT_S if is_idle and has_work else None
                )
            except queue.Empty:
                return True
            if message is None:
                raise FrontGone
            if isinstance(message, protocol.Shutdown):
                return False
            self._act(message)
            is_idle = False

    def _act(self, message: protocol.ToEngine) -> None:
        match message:
            case protocol.Submit():
                self._submit(message)
            case protocol.Abort():
                for request_id in message.request_ids:
                    if self._scheduler.abort(request_id):
                        if self._recorder is not None:
                            self._recorder.ended(request_id, self._clock.now())
                        self._drop(request_id)
            case protocol.Flush():
                self._send(protocol.Flushed(message.ref, self._scheduler.flush()))
            case protocol.AskSnapshot():
                self._send(protocol.SnapshotReply(message.ref, self._scheduler.snapshot()))
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a running engine")

    def _submit(self, message: protocol.Submit) -> None:
        prompt = np.frombuffer(message.prompt, dtype="<i4")
        step = self._scheduler.num_steps
        try:
            self._scheduler.add(
                Arrival(
                    request_id=message.request_id,
                    prompt=prompt,
                    sampling=message.sampling,
                    namespace=message.namespace,
                    boundaries=message.boundaries,
                    eos_token_ids=self._eos,
                )
            )
        except TwinpoolError as error:
            self._send(
                protocol.Rejected(message.request_id, error_kind(error), error.message, error.hint)
            )
            return
        self._arrived_s[message.request_id] = self._clock.now()
        if self._recorder is not None:
            self._recorder.arrived(
                message.request_id,
                prompt,
                namespace=message.namespace,
                max_tokens=message.sampling.max_tokens,
                boundaries=message.boundaries,
                step=step,
                now_s=self._clock.now(),
            )
        self._send(protocol.Accepted(message.request_id))

    def _step(self) -> bool:
        """Plan, carry out and commit one step; False when there is nothing to do now."""
        plan = self._scheduler.schedule(self._clock.now())
        if plan is None:
            return False
        self._note_first_steps(plan)
        result = self._executor.execute(plan)
        progress = self._scheduler.commit(result, self._clock.now())
        if progress:
            self._send(protocol.StepDone(tuple(self._event(item) for item in progress)))
        for item in progress:
            if self._recorder is not None:
                self._recorder.heard(item, self._clock.now())
            if item.finish_reason is not None:
                self._drop(item.request_id)
        if self._scheduler.num_steps >= self._thrash_watch.next_step:
            line = self._thrash_watch.look(self._scheduler.snapshot())
            if line:
                self._send(protocol.Log(line))
        return True

    def _note_first_steps(self, plan: StepPlan) -> None:
        if not self._arrived_s:
            return
        now_s = self._clock.now()
        for lane in plan.lanes:
            arrived_s = self._arrived_s.pop(lane.request_id, None)
            if arrived_s is not None:
                self._queue_s[lane.request_id] = now_s - arrived_s

    def _event(self, progress: Progress) -> protocol.TokenEvent:
        return protocol.TokenEvent(
            request_id=progress.request_id,
            token=progress.token,
            finish_reason=progress.finish_reason,
            cached_tokens=progress.cached_tokens,
            queue_s=self._queue_s.pop(progress.request_id, None),
            stop_string=progress.stop_string,
            stop_token=progress.stop_token,
            error=progress.error,
            logprobs=progress.logprobs,
            prompt_logprobs=progress.prompt_logprobs,
        )

    def _drop(self, request_id: int) -> None:
        self._executor.forget(request_id)
        self._arrived_s.pop(request_id, None)
        self._queue_s.pop(request_id, None)

    def _send(self, message: protocol.FromEngine) -> None:
        if not self._send_message(message):
            raise FrontGone


def error_kind(error: Exception) -> str:
    """Return the word that stands for an error in `Rejected` and `Fatal`."""
    match error:
        case UnsupportedModelError():
            return "unsupported_model"
        case ConfigError():
            return "config"
        case CapacityError():
            return "capacity"
        case _:
            return "internal"


def serve_channel(channel: BlockingChannel, build: Build) -> int:
    """Load an engine as the first message says and run it.

    Args:
        channel: The connection to the front.
        build: Loads the engine; gets the settings of `Start` and a sink for its progress.

    Returns:
        The exit code: 0 when it was told to stop or the front went, 1 after an error.
    """
    inbox: queue.SimpleQueue[protocol.ToEngine | None] = queue.SimpleQueue()
    finished = threading.Event()
    threading.Thread(
        target=_read_messages, args=(channel, inbox, finished), name="front-reader", daemon=True
    ).start()

    def send(message: protocol.FromEngine) -> bool:
        return channel.send(protocol.encode(message))

    def report(message: protocol.Loading | protocol.Log) -> None:
        if not send(message):
            raise FrontGone

    try:
        start = inbox.get()
        if start is None:
            return 0
        if not isinstance(start, protocol.Start):
            raise AssertionError(f"the first message is {type(start).__name__}, not Start")
        engine = build(start.settings, report)
        send(protocol.Ready(engine.info))
        Worker(engine, inbox, send, MonotonicClock()).run()
    except FrontGone:
        return 0
    except Exception as error:
        if not isinstance(error, TwinpoolError) or error_kind(error) == "internal":
            traceback.print_exc(file=sys.stderr)
        send(_fatal(error))
        return 1
    finally:
        finished.set()
    return 0


def _fatal(error: Exception) -> protocol.Fatal:
    if isinstance(error, TwinpoolError):
        return protocol.Fatal(error_kind(error), error.message, error.hint)
    return protocol.Fatal("internal", f"{type(error).__name__}: {error}")


def _read_messages(
    channel: BlockingChannel,
    inbox: queue.SimpleQueue[protocol.ToEngine | None],
    finished: threading.Event,
) -> None:
    """Pass messages on until the front is gone; then see to it that the process ends."""
    try:
        while (payload := channel.receive()) is not None:
            inbox.put(protocol.decode_to_engine(payload))
    except (FrameError, msgspec.MsgspecError) as error:
        print(f"engine: unreadable message from the front: {error}", file=sys.stderr, flush=True)
    inbox.put(None)
    # A load or a step can take minutes, and nobody is left to use what it gives.
    if not finished.wait(ORPHAN_GRACE_S):
        os._exit(1)


def _build_from_assembly(settings: bytes, progress: ProgressSink) -> LoadedEngine:
    # Here and not above: the front imports this module's names without paying for torch. The
    # kernels' package comes first: it says how OpenMP waits before torch loads it.
    import twinpool.kernels  # noqa: F401
    from twinpool.engine.assembly import build_engine

    wanted = msgspec.msgpack.decode(settings, type=protocol.EngineSettings)
    return build_engine(wanted.flags, wanted.file, progress)


def main(argv: list[str] | None = None, build: Build = _build_from_assembly) -> int:
    """Run the engine process: `python -m twinpool.engine.worker --fd N`.

    Args:
        argv: Arguments without the program; None takes the process's own.
        build: Loads the engine.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description="twinpool's engine process; `serve` starts it")
    parser.add_argument("--fd", type=int, required=True, help="connected socket to the front")
    fd = parser.parse_args(argv).fd
    # A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group; the front drains
    # its requests first and then tells the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = BlockingChannel(socket.socket(fileno=fd))
    try:
        return serve_channel(channel, build)
    finally:
        channel.close()


if __name__ == "__main__":
    # Threads of numeric libraries may hang in their tear-down; nothing is left to clean up.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
