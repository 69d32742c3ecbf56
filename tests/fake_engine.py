"""A stand-in for the engine: real worker loop and protocol, no torch, tokens that are known before.

The output repeats the prompt, token i is `prompt[i % len(prompt)]`: text comes back as it went in.
The first token of a prompt can ask for trouble, see `Trouble`. As a process: this file, `--fd N`.
"""

from __future__ import annotations

import enum
import os
import sys
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np

from twinpool.engine import protocol
from twinpool.engine.launch import EngineLaunch
from twinpool.engine.ports import ProgressSink
from twinpool.engine.worker import main
from twinpool.errors import CapacityError, ConfigError
from twinpool.scheduling.events import (
    Arrival,
    FinishReason,
    PoolSnapshot,
    Progress,
    Snapshot,
)
from twinpool.scheduling.plan import Lane, LaneResult, StepPlan, StepResult, TokenLogprobs

VOCAB = 320
EOS = 256
IM_START = 257
IM_END = 258


class Trouble(enum.IntEnum):
    """First tokens of prompts that misbehave."""

    RAISE = 300
    EXIT = 301
    CAPACITY = 302
    LANE_ERROR = 303
    SLOW = 304
    HANG = 305
    GATE = 306


class FakeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `Start` carries to the fake."""

    context_tokens: int = 256
    max_running_requests: int = 4
    step_s: float = 0.0
    slow_step_s: float = 0.02
    load_s: float = 0.0
    boot_error: str = ""
    crash_at_boot: bool = False
    skip_tokenizer: bool = False
    capacity_rows: int = 4096
    gate_path: str = ""


def launch(**settings: object) -> EngineLaunch:
    """Return how to start the fake as a process."""
    payload = msgspec.msgpack.encode(FakeSettings(**settings))  # type: ignore[arg-type]
    return EngineLaunch(settings=payload, command=(sys.executable, __file__))


@dataclass
class _Live:
    arrival: Arrival
    prompt: np.ndarray
    cached: int
    output: list[int] = field(default_factory=list)


class FakeScheduler:
    """First come, first served; one token per running request and step."""

    def __init__(self, settings: FakeSettings) -> None:
        self._settings = settings
        self._live: dict[int, _Live] = {}
        self._seen: dict[str, list[np.ndarray]] = {}
        self._steps = 0
        self.finished: dict[str, int] = {}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.arrivals: list[Arrival] = []

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def num_steps(self) -> int:
        return self._steps

    def add(self, arrival: Arrival) -> None:
        prompt = np.array(arrival.prompt)
        if prompt[0] == Trouble.CAPACITY:
            raise CapacityError("999 rows needed, the pool has 4096", hint="raise --pool-memory")
        if arrival.sampling.min_p == 0.123:
            raise ConfigError("min_p is odd", hint="use another")
        cached = max(
            (_common(prompt, old) for old in self._seen.get(arrival.namespace, [])), default=0
        )
        cached = min(cached, len(prompt) - 1)
        self.prompt_tokens += len(prompt)
        self.cached_tokens += cached
        self.arrivals.append(arrival)
        self._live[arrival.request_id] = _Live(arrival, prompt, cached)

    def abort(self, request_id: int) -> bool:
        if self._live.pop(request_id, None) is None:
            return False
        self._count(FinishReason.ABORT)
        return True

    def schedule(self, now: float) -> StepPlan | None:
        running = list(self._live.values())[: self._settings.max_running_requests]
        if not running:
            return None
        self._steps += 1
        lanes = tuple(self._lane(live) for live in running)
        return StepPlan(step=self._steps, actions=(), lanes=lanes)

    def _lane(self, live: _Live) -> Lane:
        tokens = np.concatenate([live.prompt, np.array(live.output, dtype=np.int32)])
        return Lane(
            request_id=live.arrival.request_id,
            start=len(tokens) - 1,
            end=len(tokens),
            tokens=tokens,
            num_prompt=len(live.prompt),
            rows=np.arange(len(tokens), dtype=np.int32),
            slot=1,
            checkpoints=(),
            sampling=live.arrival.sampling,
            output_index=len(live.output),
        )

    def commit(self, result: StepResult, now: float) -> list[Progress]:
        return [self._progress(lane) for lane in result.lanes if lane.request_id in self._live]

    def _progress(self, lane: LaneResult) -> Progress:
        live = self._live[lane.request_id]
        sampling = live.arrival.sampling
        if lane.error:
            self._end(live, FinishReason.ERROR)
            return Progress(
                request_id=lane.request_id,
                finish_reason=FinishReason.ERROR,
                error=lane.error,
                cached_tokens=live.cached,
            )
        assert lane.token is not None
        live.output.append(lane.token)
        if len(live.output) == 1:
            self._seen.setdefault(live.arrival.namespace, []).append(live.prompt)
        self.output_tokens += 1
        stops = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stops |= set(live.arrival.eos_token_ids)
        reason = None
        stop_token = None
        stop_string = _stop_string(live.output, sampling.stop_strings)
        if len(live.output) >= sampling.min_tokens:
            if lane.token in stops:
                reason, stop_token = FinishReason.STOP, lane.token
            elif stop_string is not None:
                reason = FinishReason.STOP
        if reason is None and len(live.output) >= sampling.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._end(live, reason)
        prompt_logprobs = None
        if len(live.output) == 1 and sampling.prompt_logprobs is not None:
            prompt_logprobs = tuple(
                _logprobs(int(token), sampling.prompt_logprobs) for token in live.prompt[1:]
            )
        return Progress(
            request_id=lane.request_id,
            token=lane.token,
            logprobs=lane.logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=reason,
            stop_string=stop_string if reason is FinishReason.STOP else None,
            stop_token=stop_token,
            cached_tokens=live.cached,
        )

    def _end(self, live: _Live, reason: FinishReason) -> None:
        del self._live[live.arrival.request_id]
        whole = np.concatenate([live.prompt, np.array(live.output, dtype=np.int32)])[:-1]
        self._seen.setdefault(live.arrival.namespace, []).append(whole)
        self._count(reason)

    def _count(self, reason: FinishReason) -> None:
        self.finished[reason.value] = self.finished.get(reason.value, 0) + 1

    def flush(self) -> bool:
        self._seen.clear()
        return not self._live

    def snapshot(self) -> Snapshot:
        running = min(len(self._live), self._settings.max_running_requests)
        return Snapshot(
            kv=_pool(self._settings.capacity_rows, running * 16),
            state=_pool(64, running),
            num_running=running,
            num_waiting=len(self._live) - running,
            max_running_requests=self._settings.max_running_requests,
            num_steps=self._steps,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.prompt_tokens - self.cached_tokens + self.output_tokens,
            output_tokens=self.output_tokens,
            state_missed_tokens=0,
            retractions=0,
            skipped_checkpoints=0,
            thrashed_tokens=7,
            moved_rows=6,
            longest_wait_s=2.5,
            finished=dict(self.finished),
        )


def _pool(capacity: int, working: int) -> PoolSnapshot:
    return PoolSnapshot(
        capacity=capacity,
        free=capacity - working,
        working=working,
        cached=0,
        evictable=0,
        evictions={"rows": 1, "slots": 2},
    )


def _common(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differs = np.nonzero(a[:size] != b[:size])[0]
    return int(differs[0]) if len(differs) else size


def _stop_string(output: list[int], stops: tuple[str, ...]) -> str | None:
    text = bytes(token for token in output if token < 256).decode("utf-8", errors="ignore")
    return next((stop for stop in stops if stop in text), None)


def _logprobs(token: int, count: int) -> TokenLogprobs:
    best = [(token, -0.25)] + [((token + n) % 256, -1.0 - n) for n in range(1, count)]
    return TokenLogprobs(token, -0.25, tuple(best[:count]))


class FakeExecutor:
    """Repeats the prompt."""

    def __init__(self, settings: FakeSettings) -> None:
        self._settings = settings
        self.forgotten: list[int] = []

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self._settings.step_s)
        return StepResult(
            step=plan.step, lanes=tuple(self._lane(lane) for lane in plan.lanes), duration_s=0.0
        )

    def _lane(self, lane: Lane) -> LaneResult:
        head = int(lane.tokens[0])
        if head == Trouble.SLOW:
            time.sleep(self._settings.slow_step_s)
        if lane.output_index == 2:
            if head == Trouble.RAISE:
                raise RuntimeError("the step broke")
            if head == Trouble.EXIT:
                os._exit(7)
            if head == Trouble.LANE_ERROR:
                return LaneResult(request_id=lane.request_id, token=None, error="logits are nan")
            if head == Trouble.HANG:
                time.sleep(3600)
            while head == Trouble.GATE and not os.path.exists(self._settings.gate_path):
                time.sleep(0.005)
        token = int(lane.tokens[lane.output_index % lane.num_prompt])
        assert lane.sampling is not None
        wanted = lane.sampling.logprobs
        return LaneResult(
            request_id=lane.request_id,
            token=token,
            logprobs=None if wanted is None else _logprobs(token, wanted),
        )

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)


@dataclass
class FakeEngine:
    """What the worker runs."""

    scheduler: FakeScheduler
    executor: FakeExecutor
    info: protocol.EngineFacts
    recorder: None = None


def build(settings: bytes, progress: ProgressSink) -> FakeEngine:
    """Make the fake as its settings say."""
    wanted = msgspec.msgpack.decode(settings, type=FakeSettings)
    for done in range(2):
        progress(protocol.Loading("loading weights", done, 2, "bytes"))
        time.sleep(wanted.load_s / 2)
    if wanted.boot_error:
        raise ConfigError(wanted.boot_error, hint="choose another")
    if wanted.crash_at_boot:
        os._exit(9)
    return FakeEngine(FakeScheduler(wanted), FakeExecutor(wanted), fake_info(wanted))


def fake_info(wanted: FakeSettings) -> protocol.EngineFacts:
    """What the fake says of itself."""
    return protocol.EngineFacts(
        model="/models/tiny-hybrid",
        architecture="FakeForCausalLM",
        context_tokens=wanted.context_tokens,
        max_request_tokens=wanted.context_tokens,
        max_running_requests=wanted.max_running_requests,
        vocab_size=VOCAB,
        eos_token_ids=(EOS, IM_END),
        tokenizer_dir=None if wanted.skip_tokenizer else "/models/tiny-hybrid",
        generation=protocol.GenerationDefaults(temperature=0.5, top_k=7),
        settings=(
            protocol.EffectiveValue(
                name="max_running_requests",
                value=wanted.max_running_requests,
                source="derived",
                why="64 state slots / 1 slot per request, 4096 rows / 2",
            ),
        ),
        model_facts={"num_layers": 4, "dtype": "float32"},
    )


if __name__ == "__main__":
    os._exit(main(build=build))
