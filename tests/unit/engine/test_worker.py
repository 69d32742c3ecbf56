"""The worker loop, run in a thread over a fake engine."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from fake_engine import EOS, FakeEngine, FakeSettings, Trouble, build
from twinpool.clock import VirtualClock
from twinpool.engine import protocol
from twinpool.engine.channel import BlockingChannel
from twinpool.engine.worker import FrontGone, Worker, serve_channel
from twinpool.scheduling.events import FinishReason
from twinpool.scheduling.sampling import SamplingParams


def _submit(number: int, tokens: list[int], **sampling: object) -> protocol.Submit:
    params = SamplingParams(**{"max_tokens": 3, **sampling})  # type: ignore[arg-type]
    return protocol.Submit(number, np.array(tokens, dtype="<i4").tobytes(), params, "space", (1,))


class Bench:
    """A worker whose inbox is filled beforehand and whose messages are kept."""

    def __init__(self) -> None:
        settings = msgspec.msgpack.encode(FakeSettings())
        self.engine: FakeEngine = build(settings, lambda _message: None)
        self.inbox: queue.SimpleQueue[protocol.ToEngine | None] = queue.SimpleQueue()
        self.sent: list[protocol.FromEngine] = []
        self.clock = VirtualClock()

    def send(self, message: protocol.FromEngine) -> bool:
        self.sent.append(message)
        return True

    def run(self, *messages: protocol.ToEngine | None) -> list[protocol.FromEngine]:
        for message in messages:
            self.inbox.put(message)
        Worker(self.engine, self.inbox, self.send, self.clock).run()
        return self.sent

    def run_until_idle(self, *messages: protocol.ToEngine) -> list[protocol.FromEngine]:
        """Run until every request has ended, then stop the worker."""
        for message in messages:
            self.inbox.put(message)
        original = self.engine.executor.execute

        def stop_when_done(plan: object) -> object:
            result = original(plan)  # type: ignore[arg-type]
            if all(lane.output_index + 1 >= 3 for lane in plan.lanes):  # type: ignore[attr-defined]
                self.inbox.put(protocol.Shutdown())
            return result

        self.engine.executor.execute = stop_when_done  # type: ignore[assignment, method-assign]
        Worker(self.engine, self.inbox, self.send, self.clock).run()
        return self.sent


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_request_is_accepted_then_brings_one_event_per_step(bench: Bench) -> None:
    sent = bench.run_until_idle(_submit(5, [10, 11]), _submit(6, [20]))
    assert sent[:2] == [protocol.Accepted(5), protocol.Accepted(6)]
    steps = [message for message in sent if isinstance(message, protocol.StepDone)]
    assert [[(e.request_id, e.token) for e in step.events] for step in steps] == [
        [(5, 10), (6, 20)],
        [(5, 11), (6, 20)],
        [(5, 10), (6, 20)],
    ]
    assert [e.finish_reason for e in steps[-1].events] == [FinishReason.LENGTH] * 2
    assert sorted(bench.engine.executor.forgotten) == [5, 6]


def test_the_arrival_carries_what_was_submitted_and_the_models_end_tokens(bench: Bench) -> None:
    bench.run_until_idle(_submit(5, [10, 11]))
    (arrival,) = bench.engine.scheduler.arrivals
    assert arrival.prompt.tolist() == [10, 11]
    assert (arrival.namespace, arrival.boundaries) == ("space", (1,))
    assert EOS in arrival.eos_token_ids


def test_queue_time_is_told_once_on_the_first_event(bench: Bench) -> None:
    original = bench.engine.scheduler.schedule

    def later(now: float) -> object:
        plan = original(now)
        bench.clock.advance_to(bench.clock.now() + 2.0)
        return plan

    bench.engine.scheduler.schedule = later  # type: ignore[assignment, method-assign]
    sent = bench.run_until_idle(_submit(5, [10]))
    events = [e for m in sent if isinstance(m, protocol.StepDone) for e in m.events]
    assert [event.queue_s for event in events] == [2.0, None, None]


def test_refusals_carry_kind_message_and_hint(bench: Bench) -> None:
    sent = bench.run(
        _submit(1, [Trouble.CAPACITY]), _submit(2, [1], min_p=0.123), protocol.Shutdown()
    )
    assert sent == [
        protocol.Rejected(
            1, "capacity", "999 rows needed, the pool has 4096", "raise --pool-memory"
        ),
        protocol.Rejected(2, "config", "min_p is odd", "use another"),
    ]


def test_an_abort_frees_and_brings_no_event(bench: Bench) -> None:
    sent = bench.run(_submit(1, [5]), protocol.Abort((1, 77)), protocol.Shutdown())
    assert sent == [protocol.Accepted(1)]
    assert bench.engine.executor.forgotten == [1]
    assert not bench.engine.scheduler.has_work


def test_flush_and_snapshot_are_answered_by_number(bench: Bench) -> None:
    sent = bench.run(protocol.Flush(3), protocol.AskSnapshot(4), protocol.Shutdown())
    assert sent == [
        protocol.Flushed(3, True),
        protocol.SnapshotReply(4, bench.engine.scheduler.snapshot()),
    ]


def test_the_front_going_ends_the_loop(bench: Bench) -> None:
    with pytest.raises(FrontGone):
        bench.run(_submit(1, [5], max_tokens=1000), None)


def test_a_front_that_cannot_be_reached_ends_the_loop(bench: Bench) -> None:
    bench.send = lambda message: False  # type: ignore[method-assign]
    with pytest.raises(FrontGone):
        bench.run(_submit(1, [5], max_tokens=1000))


def test_a_scheduler_that_has_work_but_no_plan_does_not_stop_messages(bench: Bench) -> None:
    calls: list[float] = []

    def nothing(now: float) -> None:
        calls.append(now)
        if len(calls) == 3:
            bench.inbox.put(protocol.Shutdown())

    bench.engine.scheduler.schedule = nothing  # type: ignore[assignment, method-assign]
    assert bench.run(_submit(1, [5])) == [protocol.Accepted(1)]
    assert len(calls) == 3


# ---- over a real socket


@pytest.fixture
def wire() -> Iterator[tuple[BlockingChannel, BlockingChannel]]:
    ours, theirs = (BlockingChannel(sock) for sock in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def _serve(theirs: BlockingChannel, codes: list[int]) -> threading.Thread:
    thread = threading.Thread(target=lambda: codes.append(serve_channel(theirs, build)))
    thread.start()
    return thread


def _read(ours: BlockingChannel) -> protocol.FromEngine:
    payload = ours.receive()
    assert payload is not None
    return protocol.decode_from_engine(payload)


def _start(**settings: object) -> bytes:
    payload = msgspec.msgpack.encode(FakeSettings(**settings))  # type: ignore[arg-type]
    return protocol.encode(protocol.Start(payload))


def test_loading_is_reported_then_ready_then_shutdown_is_code_0(
    wire: tuple[BlockingChannel, BlockingChannel],
) -> None:
    ours, theirs = wire
    codes: list[int] = []
    thread = _serve(theirs, codes)
    ours.send(_start())
    assert [type(_read(ours)).__name__ for _ in range(3)] == ["Loading", "Loading", "Ready"]
    ours.send(protocol.encode(protocol.Shutdown()))
    thread.join(timeout=20)
    assert codes == [0]


def test_a_load_that_fails_says_why_and_is_code_1(
    wire: tuple[BlockingChannel, BlockingChannel],
) -> None:
    ours, theirs = wire
    codes: list[int] = []
    thread = _serve(theirs, codes)
    ours.send(_start(boot_error="no such model"))
    messages = [_read(ours) for _ in range(3)]
    thread.join(timeout=20)
    assert messages[-1] == protocol.Fatal("config", "no such model", "choose another")
    assert codes == [1]


def test_a_step_that_raises_says_why_and_is_code_1(
    wire: tuple[BlockingChannel, BlockingChannel], capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = wire
    codes: list[int] = []
    thread = _serve(theirs, codes)
    ours.send(_start())
    ours.send(protocol.encode(_submit(1, [Trouble.RAISE], max_tokens=10)))
    last: protocol.FromEngine | None = None
    while (payload := ours.receive()) is not None:
        last = protocol.decode_from_engine(payload)
        if isinstance(last, protocol.Fatal):
            break
    thread.join(timeout=20)
    assert last == protocol.Fatal("internal", "RuntimeError: the step broke")
    assert codes == [1]
    assert "Traceback" in capfd.readouterr().err


def test_a_front_that_goes_while_idle_is_code_0(
    wire: tuple[BlockingChannel, BlockingChannel],
) -> None:
    ours, theirs = wire
    codes: list[int] = []
    thread = _serve(theirs, codes)
    ours.send(_start())
    while not isinstance(_read(ours), protocol.Ready):
        pass
    ours.close()
    thread.join(timeout=20)
    assert codes == [0]
