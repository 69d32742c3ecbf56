"""The executor: actions before the pass, one result per lane, faults stay in their lane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from model_runs import Bench
from tiny_models import build, qwen3_5_config, random_tokens, save
from twinpool.clock import VirtualClock
from twinpool.engine import executor as executor_module
from twinpool.engine.executor import TorchExecutor
from twinpool.engine.pools import Pools
from twinpool.models.decoder import Decoder
from twinpool.models.load import load_model
from twinpool.scheduling.plan import (
    CheckpointWrite,
    CopyState,
    Lane,
    LaneResult,
    MemoryAction,
    StepPlan,
    TokenLogprobs,
    ZeroState,
)
from twinpool.scheduling.sampling import SamplingParams
from twinpool.spec.geometry import geometry_of

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
BAD_TOKEN = 13


class _Greedy:
    """Takes the most likely token and notes what it was asked."""

    def __init__(self) -> None:
        self.sampled: list[tuple[int, ...]] = []
        self.forgotten: list[int] = []
        self.num_tops: list[int] = []
        self.slices: list[int] = []

    def sample(self, logits: torch.Tensor, lanes: Sequence[Lane]) -> list[LaneResult]:
        self.sampled.append(tuple(lane.request_id for lane in lanes))
        assert len(logits) == len(lanes)
        assert torch.isfinite(logits).all()
        best = logits.argmax(1).tolist()
        return [LaneResult(lane.request_id, token) for lane, token in zip(lanes, best, strict=True)]

    def prompt_logprobs(
        self, logits: torch.Tensor, targets: np.ndarray, num_top: int
    ) -> tuple[TokenLogprobs, ...]:
        self.num_tops.append(num_top)
        self.slices.append(len(targets))
        chosen = torch.log_softmax(logits, 1)[torch.arange(len(targets)), targets.tolist()]
        return tuple(
            TokenLogprobs(int(token), float(logprob))
            for token, logprob in zip(targets, chosen, strict=True)
        )

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)


class _Rig:
    """An executor with its parts."""

    def __init__(self, model: Decoder) -> None:
        self.pools = Pools(
            model.spec, geometry_of(model.spec), num_rows=256, num_slots=8, poison=True
        )
        self.sampler = _Greedy()
        self.executor = TorchExecutor(model, self.pools, self.sampler, VirtualClock())
        self.step = 0

    def run(self, *lanes: Lane, actions: tuple[MemoryAction, ...] = ()) -> tuple[LaneResult, ...]:
        plan = StepPlan(self.step, actions, lanes)
        self.step += 1
        result = self.executor.execute(plan)
        assert result.step == plan.step
        return result.lanes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("executor")
    theirs = build(qwen3_5_config(), seed=41)
    theirs.model.embed_tokens.weight.data[BAD_TOKEN] = float("nan")
    return load_model(save(theirs, folder))


@pytest.fixture
def rig(model: Decoder) -> _Rig:
    return _Rig(model)


def _prompt(seed: int, length: int = 12) -> np.ndarray:
    tokens = random_tokens(length, seed=seed)
    return np.where(tokens == BAD_TOKEN, 14, tokens).astype(np.int32)


def _lane(
    tokens: np.ndarray,
    *,
    request: int = 1,
    start: int = 0,
    end: int | None = None,
    sampling: SamplingParams | None = GREEDY,
    checkpoints: tuple[CheckpointWrite, ...] = (),
    prompt_logprobs: int | None = None,
    slot: int | None = None,
) -> Lane:
    end = len(tokens) if end is None else end
    rows = 1 + 32 * request + np.arange(end, dtype=np.int32)
    return Lane(
        request_id=request,
        start=start,
        end=end,
        tokens=tokens,
        num_prompt=len(tokens),
        rows=rows,
        slot=request if slot is None else slot,
        checkpoints=checkpoints,
        sampling=sampling,
        output_index=0,
        prompt_logprobs=prompt_logprobs,
    )


def test_lanes_that_sample_get_the_token_of_their_own_logits(model: Decoder, rig: _Rig) -> None:
    prompts = [_prompt(seed) for seed in (1, 2, 3)]
    lanes = [
        _lane(prompts[0], request=1),
        _lane(prompts[1], request=2, end=7, sampling=None),
        _lane(prompts[2], request=3),
    ]
    results = rig.run(*lanes, actions=(ZeroState(1), ZeroState(2), ZeroState(3)))
    assert [result.request_id for result in results] == [1, 2, 3]
    assert results[1] == LaneResult(2, None)
    for index in (0, 2):
        alone = Bench(model).alone(prompts[index])[-1]
        assert results[index].token == int(alone.argmax())
    assert rig.sampler.sampled == [(1, 3)]


def test_actions_come_before_the_pass(rig: _Rig) -> None:
    tokens = _prompt(4, 20)
    write = CheckpointWrite(15, 5)
    first = rig.run(_lane(tokens, checkpoints=(write,)), actions=(ZeroState(1),))
    # Slot 6 is poisoned until the copy; rows of the first fifteen tokens are shared.
    resumed = _lane(tokens, request=1, start=15, slot=6)
    second = rig.run(resumed, actions=(CopyState(5, 6),))
    assert first[0].token == second[0].token


def test_a_plan_of_actions_alone_is_carried_out(rig: _Rig) -> None:
    assert rig.run(actions=(ZeroState(2), CopyState(2, 3))) == ()
    assert not rig.pools.slot_bytes_of(3).any()
    assert rig.sampler.sampled == []


def test_reading_a_slot_that_nobody_wrote_shows_as_an_error(rig: _Rig) -> None:
    (result,) = rig.run(_lane(_prompt(5)))
    assert "not finite" in result.error


@pytest.mark.parametrize("samples", [True, False])
def test_a_lane_that_is_not_finite_fails_alone(model: Decoder, rig: _Rig, samples: bool) -> None:
    good, bad = _prompt(6), _prompt(7)
    bad[4] = BAD_TOKEN
    lanes = [
        _lane(good, request=1),
        _lane(
            bad,
            request=2,
            sampling=GREEDY if samples else None,
            prompt_logprobs=2 if samples else None,
        ),
        _lane(good, request=3),
    ]
    results = rig.run(*lanes, actions=tuple(ZeroState(slot) for slot in (1, 2, 3)))
    assert "not finite" in results[1].error
    assert results[1].token is None
    assert results[1].prompt_logprobs == ()
    assert results[0].token == results[2].token == int(Bench(model).alone(good)[-1].argmax())
    assert [result.error for result in results] == ["", results[1].error, ""]
    assert rig.sampler.sampled == [(1, 3)]


def test_logits_that_are_not_finite_fail_alone(
    model: Decoder, rig: _Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Decoder.logits

    def with_one_infinity(self: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        logits = plain(self, hidden)
        logits[0, 5] = float("inf")
        return logits

    monkeypatch.setattr(Decoder, "logits", with_one_infinity)
    good = _prompt(8)
    lanes = [_lane(good, request=request) for request in (1, 2)]
    results = rig.run(*lanes, actions=(ZeroState(1), ZeroState(2)))
    assert results[0].error == "1 of 97 logits are not finite numbers"
    assert results[1].token is not None
    assert rig.sampler.sampled == [(2,)]


@pytest.mark.parametrize("token", [-1, 97, 2**31 - 1])
def test_a_token_outside_the_vocabulary_fails_alone(rig: _Rig, token: int) -> None:
    good, bad = _prompt(9), _prompt(10)
    bad[3] = token
    lanes = [_lane(bad, request=1), _lane(good, request=2)]
    results = rig.run(*lanes, actions=(ZeroState(1), ZeroState(2)))
    assert results[0].error == f"token {token} is outside the vocabulary of 97"
    assert results[1].token is not None
    assert bad[3] == token, "the lane's own tokens are read only"


def test_large_numbers_are_finite() -> None:
    huge = torch.full((2, 64), 3e38)
    huge[1, 3] = float("nan")
    assert executor_module._finite_rows(huge).tolist() == [True, False]


@pytest.mark.parametrize("slice_bytes", [1, 4 * 97 * 5, 2**26])
def test_prompt_logprobs_of_chunks_join_to_those_of_the_whole(
    model: Decoder, rig: _Rig, monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(executor_module, "PROMPT_LOGITS_BYTES", slice_bytes)
    tokens = _prompt(11, 20)
    asked = SamplingParams(max_tokens=8, temperature=0.0, prompt_logprobs=2)
    first = _lane(tokens, end=9, sampling=None, prompt_logprobs=2)
    second = _lane(tokens, start=9, sampling=asked, prompt_logprobs=2)
    found = [
        entry
        for lane, actions in ((first, (ZeroState(1),)), (second, ()))
        for entry in rig.run(lane, actions=actions)[0].prompt_logprobs
    ]
    assert [entry.token for entry in found] == tokens[1:].tolist()
    expected = torch.log_softmax(Bench(model).alone(tokens), 1)
    for position, entry in enumerate(found):
        assert entry.logprob == pytest.approx(float(expected[position, entry.token]), abs=1e-5)
    assert set(rig.sampler.num_tops) == {2}
    assert max(rig.sampler.slices) <= max(1, slice_bytes // (4 * 97))


def test_a_request_that_ended_is_forgotten_by_the_sampler(rig: _Rig) -> None:
    rig.executor.forget(7)
    assert rig.sampler.forgotten == [7]


def test_the_clock_tells_how_long_a_step_took(model: Decoder, rig: _Rig) -> None:
    class _Ticking:
        def __init__(self) -> None:
            self.ticks = 0

        def now(self) -> float:
            self.ticks += 1
            return 0.5 * self.ticks

    executor = TorchExecutor(model, rig.pools, rig.sampler, _Ticking())
    assert executor.execute(StepPlan(3, (), ())).duration_s == 0.5
