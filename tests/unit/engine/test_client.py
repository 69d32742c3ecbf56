"""The engine client against a real process that runs the fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest

from fake_engine import Trouble, launch
from twinpool.engine import protocol
from twinpool.engine.client import (
    EngineClient,
    EngineFailed,
    EngineGone,
    EngineLost,
    EngineState,
    Submission,
)
from twinpool.engine.launch import EngineLaunch, RestartPolicy
from twinpool.engine.mailbox import Mailbox
from twinpool.errors import CapacityError, ConfigError
from twinpool.scheduling.events import FinishReason
from twinpool.scheduling.sampling import SamplingParams

QUICK = RestartPolicy(max_restarts=2, first_delay_s=0.01)


def _ask(tokens: list[int], **sampling: object) -> Submission:
    params = SamplingParams(**{"max_tokens": 4, **sampling})  # type: ignore[arg-type]
    return Submission(prompt=np.array(tokens, dtype=np.int32), sampling=params)


def _submit(client: EngineClient, submissions: list[Submission]) -> Mailbox:
    mailbox = client.mailbox()
    client.submit(dict(enumerate(submissions)), mailbox)
    return mailbox


@contextlib.asynccontextmanager
async def _engine(**settings: object) -> AsyncIterator[EngineClient]:
    client = EngineClient(launch(**settings), policy=QUICK)
    task = asyncio.create_task(client.run())
    try:
        await _until(lambda: client.state is EngineState.READY)
        yield client
    finally:
        await client.stop()
        await asyncio.wait_for(task, 20)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def _drain(mailbox: Mailbox) -> list[tuple[int, protocol.TokenEvent]]:
    events = []
    with mailbox:
        while batch := await mailbox.get():
            events += batch
    return events


def _run(test: Callable[[EngineClient], Awaitable[None]], **settings: object) -> None:
    async def inside() -> None:
        async with asyncio.timeout(60), _engine(**settings) as client:
            await test(client)

    asyncio.run(inside())


def test_events_come_by_position_and_the_mailbox_ends() -> None:
    async def test(client: EngineClient) -> None:
        mailbox = _submit(client, [_ask([1, 2]), _ask([9], max_tokens=2)])
        await mailbox.accepted()
        events = await _drain(mailbox)
        assert [e.token for n, e in events if n == 0] == [1, 2, 1, 2]
        assert [e.token for n, e in events if n == 1] == [9, 9]
        assert {e.finish_reason for _, e in events} == {None, FinishReason.LENGTH}
        assert client.num_in_flight == 0
        assert mailbox.is_finished

    _run(test)


def test_closing_a_mailbox_aborts_what_has_not_ended() -> None:
    async def test(client: EngineClient) -> None:
        with _submit(client, [_ask([Trouble.SLOW], max_tokens=10_000)]) as mailbox:
            await mailbox.get()
            assert client.num_in_flight == 1
        assert client.num_in_flight == 0
        snapshot = await client.snapshot()
        assert snapshot.num_running == 0
        assert snapshot.finished == {"abort": 1}
        assert client.last_snapshot == snapshot

    _run(test)


def test_a_refusal_is_raised_where_it_is_awaited_and_mates_are_aborted() -> None:
    async def test(client: EngineClient) -> None:
        with (
            _submit(
                client, [_ask([Trouble.SLOW], max_tokens=9999), _ask([Trouble.CAPACITY])]
            ) as box,
            pytest.raises(CapacityError, match="999 rows"),
        ):
            await box.accepted()
        assert client.num_in_flight == 0
        assert (await client.snapshot()).finished == {"abort": 1}

    _run(test)


def test_a_killed_engine_fails_what_is_in_flight_and_comes_back() -> None:
    async def test(client: EngineClient) -> None:
        mailbox = _submit(client, [_ask([Trouble.HANG], max_tokens=99)])
        await mailbox.get()
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineLost, match="in flight"):
            await _drain(mailbox)
        assert client.state is EngineState.RESTARTING
        with pytest.raises(EngineGone, match="restarting"):
            _submit(client, [_ask([1])])
        with pytest.raises(EngineGone):
            await client.snapshot()
        await _until(lambda: client.state is EngineState.READY)
        assert client.restarts == 1
        assert [e.token for _, e in await _drain(_submit(client, [_ask([7])]))] == [7] * 4

    _run(test)


@pytest.mark.parametrize("trouble", [Trouble.RAISE, Trouble.EXIT])
def test_an_engine_that_breaks_in_a_step_fails_what_is_in_flight(trouble: Trouble) -> None:
    async def test(client: EngineClient) -> None:
        mates = _submit(client, [_ask([Trouble.SLOW], max_tokens=9999)])
        with pytest.raises(EngineGone):
            await _drain(_submit(client, [_ask([trouble], max_tokens=99)]))
        with pytest.raises(EngineGone):
            await _drain(mates)

    _run(test)


def test_a_question_in_flight_is_answered_when_the_engine_dies() -> None:
    async def test(client: EngineClient) -> None:
        _submit(client, [_ask([Trouble.HANG], max_tokens=99)])
        await asyncio.sleep(0.2)
        question = asyncio.create_task(client.snapshot(timeout_s=60))
        await asyncio.sleep(0.05)
        client._process.kill()  # type: ignore[union-attr]
        with pytest.raises(EngineGone):
            await question

    _run(test)


def test_a_question_that_is_not_answered_in_time_is_an_error() -> None:
    async def test(client: EngineClient) -> None:
        _submit(client, [_ask([Trouble.HANG], max_tokens=99)])
        await asyncio.sleep(0.1)
        with pytest.raises(EngineGone, match="did not answer"):
            await client.snapshot(timeout_s=0.05)
        client.kill()

    _run(test)


def test_an_engine_that_never_comes_up_is_not_started_again() -> None:
    async def refused() -> None:
        client = EngineClient(launch(boot_error="no such model"), policy=QUICK)
        with pytest.raises(ConfigError, match="no such model") as caught:
            await asyncio.wait_for(client.run(), 20)
        assert caught.value.hint == "choose another"
        assert client.restarts == 0
        crashing = EngineClient(launch(crash_at_boot=True), policy=QUICK)
        with pytest.raises(EngineFailed, match="ended with code 9"):
            await asyncio.wait_for(crashing.run(), 20)

    asyncio.run(refused())


def test_a_program_that_cannot_be_run_is_an_error() -> None:
    async def refused() -> None:
        client = EngineClient(EngineLaunch(settings=b"", command=("/no/such/program",)))
        with pytest.raises(EngineFailed, match="cannot be started"):
            await asyncio.wait_for(client.run(), 20)

    asyncio.run(refused())


def test_the_snapshot_of_a_dead_engine_is_forgotten() -> None:
    async def test(client: EngineClient) -> None:
        await client.snapshot()
        assert client.last_snapshot is not None
        client._process.kill()  # type: ignore[union-attr]
        await _until(lambda: client.state is not EngineState.READY)
        assert client.last_snapshot is None

    _run(test)


def test_restarts_are_bounded_and_the_delay_doubles() -> None:
    async def dies_again_and_again() -> None:
        logs: list[str] = []
        client = EngineClient(
            launch(), policy=QUICK, on_message=lambda m: logs.append(getattr(m, "text", ""))
        )
        task = asyncio.create_task(client.run())
        for life in range(3):
            await _until(lambda: client.state is EngineState.READY)
            assert client.restarts == life
            client._process.kill()  # type: ignore[union-attr]
            await _until(lambda: client.state is not EngineState.READY)
        with pytest.raises(EngineFailed, match="after 2 restarts"):
            await asyncio.wait_for(task, 20)
        assert client.state is EngineState.STOPPED
        texts = [text for text in logs if "restart" in text]
        assert [text.rpartition(" in ")[2] for text in texts] == ["0.01 s", "0.02 s"]
        assert all("killed by signal 9" in text for text in texts)

    asyncio.run(dies_again_and_again())


def test_stop_while_loading_ends_at_once() -> None:
    async def stopped() -> None:
        client = EngineClient(launch(load_s=60.0), policy=QUICK)
        task = asyncio.create_task(client.run())
        await _until(lambda: client.pid is not None)
        await client.stop(grace_s=0.05)
        await asyncio.wait_for(task, 20)
        assert client.state is EngineState.STOPPED

    asyncio.run(stopped())


def test_loading_messages_reach_the_front() -> None:
    async def listened() -> None:
        heard: list[protocol.Loading | protocol.Log] = []
        client = EngineClient(launch(), policy=QUICK, on_message=heard.append)
        task = asyncio.create_task(client.run())
        await _until(lambda: client.state is EngineState.READY)
        await client.stop()
        await task
        assert heard == [
            protocol.Loading("loading weights", 0, 2, "bytes"),
            protocol.Loading("loading weights", 1, 2, "bytes"),
        ]

    asyncio.run(listened())
