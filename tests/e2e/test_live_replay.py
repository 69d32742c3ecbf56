"""What a live engine decided, its recorded trace makes the replay decide again, byte for byte."""

from __future__ import annotations

import queue
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_models
from replays import RATES
from twinpool.clock import MonotonicClock
from twinpool.engine import protocol
from twinpool.engine.assembly import Engine, build_engine
from twinpool.engine.worker import Worker
from twinpool.replay.load import Turns
from twinpool.replay.run import Setup, run_replay
from twinpool.scheduling.sampling import SamplingParams
from twinpool.settings.resolve import resolve
from twinpool.settings.wiring import counts_of
from twinpool.traces.read import read_trace

CASES: list[dict[str, Any]] = [
    {},
    {"mamba_radix_cache_strategy": "extra_buffer", "schedule_policy": "lpm"},
    {"mamba_radix_cache_strategy": "extra_buffer_lazy", "page_size": 16},
    {"mamba_radix_cache_strategy": "no_buffer", "radix_eviction_policy": "lru"},
    {"max_total_tokens": 640, "max_mamba_cache_size": 9, "chunked_prefill_size": 64},
    # One memory, no split: the default.
    {"max_mamba_cache_size": None},
    {"max_mamba_cache_size": None, "max_total_tokens": 1400, "chunked_prefill_size": 64},
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_models.build(tiny_models.qwen3_5_config(), seed=3)
    return tiny_models.save(model, tmp_path_factory.mktemp("live"))


class Front:
    """Sends requests at steps: some at once, some while others run, turn after turn."""

    def __init__(self, seed: int) -> None:
        self.inbox: queue.SimpleQueue[protocol.ToEngine | None] = queue.SimpleQueue()
        self._draw = random.Random(seed)
        self._prompts: dict[int, list[int]] = {}
        self._answers: dict[int, list[int]] = {}
        self._turns: dict[int, int] = {}
        self._num_sent = 0
        self._num_ended = 0
        self._to_come = 14
        self._shared = [self._draw.randrange(90) for _ in range(40)]

    def begin(self) -> None:
        for _ in range(4):
            self._new_session()

    def send(self, message: protocol.FromEngine) -> bool:
        if isinstance(message, protocol.StepDone):
            for event in message.events:
                self._hear(event)
            if self._to_come and self._draw.random() < 0.1:
                self._new_session()
        return True

    def _new_session(self) -> None:
        length = self._draw.choice([1, 5, 33, 70])
        head = self._shared if self._draw.random() < 0.5 else []
        self._submit([*head, *(self._draw.randrange(90) for _ in range(length))], turn=0)

    def _submit(self, prompt: list[int], turn: int) -> None:
        if not self._to_come:
            return
        self._to_come -= 1
        number = self._num_sent
        self._num_sent += 1
        self._prompts[number], self._answers[number], self._turns[number] = prompt, [], turn
        boundaries = (len(prompt) // 2,) if len(prompt) > 8 and number % 3 == 0 else ()
        self.inbox.put(
            protocol.Submit(
                number,
                np.array(prompt, dtype="<i4").tobytes(),
                SamplingParams(
                    max_tokens=self._draw.choice([1, 9, 40]),
                    temperature=0.0,
                    stop_token_ids=(7, 11, 13) if number % 2 else (),
                    ignore_eos=True,
                ),
                boundaries=boundaries,
            )
        )

    def _hear(self, event: protocol.TokenEvent) -> None:
        if event.token is not None:
            self._answers[event.request_id].append(event.token)
        if event.finish_reason is None:
            return
        self._num_ended += 1
        prompt, answer = self._prompts[event.request_id], self._answers[event.request_id]
        if self._draw.random() < 0.7 and len(prompt) < 300:
            self._submit([*prompt, *answer, 1, 2, 3], turn=1)
        elif self._to_come:
            self._new_session()
        if self._num_ended == self._num_sent and not self._to_come:
            self.inbox.put(protocol.Shutdown())


def live(folder: Path, record: Path, lines: list[bytes], flags: dict[str, Any]) -> Engine:
    settings = {
        "model_path": str(folder),
        "skip_tokenizer_init": True,
        "pool_memory": "64MiB",
        "max_total_tokens": 4096,
        "max_mamba_cache_size": 64,
        "max_running_requests": 6,
        "record": str(record),
        **flags,
    }
    engine = build_engine(settings, {}, lambda message: None, decisions=lines.append)
    front = Front(seed=len(flags))
    front.begin()
    Worker(engine, front.inbox, front.send, MonotonicClock()).run()
    return engine


@pytest.mark.parametrize("flags", CASES, ids=lambda flags: "-".join(map(str, flags.values())))
def test_the_log_of_a_live_run_is_the_log_of_its_replay(
    checkpoint: Path, tmp_path: Path, flags: dict[str, Any]
) -> None:
    record = tmp_path / "live.jsonl"
    lines: list[bytes] = []
    engine = live(checkpoint, record, lines, flags)
    trace = read_trace(record)
    assert sum(len(session.turns) for session in trace.sessions) == 14
    assert any(len(session.turns) > 1 for session in trace.sessions)
    again: list[bytes] = []
    run_replay(
        Setup(
            trace=trace,
            resolved=resolve(flags),
            counts=counts_of(engine.plan),
            cost=RATES,
            turns=Turns(unit_tokens=1, recorded_answers=True),
            by_steps=True,
        ),
        decisions=again.append,
        audit=True,
    )
    assert again == lines
    assert b'"admit"' in b"".join(lines)


def test_the_record_names_no_token(checkpoint: Path, tmp_path: Path) -> None:
    record = tmp_path / "live.jsonl"
    live(checkpoint, record, [], {})
    (trace,) = [read_trace(record)]
    for session in trace.sessions:
        for turn in session.turns:
            # Numbers count up in the order of appearance: the first prompt is 0, 1, 2, ...
            assert turn.answer is not None
    first = min((s.start_s, s) for s in trace.sessions)[1].turns[0]
    assert first.blocks.tolist() == list(range(first.input_tokens))
