"""The sampler: what each parameter does, what a faulty lane gets, and what is kept per request."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from sampling_lanes import lane, naive_adjusted, naive_distribution, random_logits
from twinpool.engine.sampler import Sampler
from twinpool.scheduling.plan import Lane, LaneResult
from twinpool.scheduling.sampling import SamplingParams

WIDTHS = (1, 2, 255, 256, 257, 1000, 5000)


def _sample(logits: np.ndarray, *lanes: Lane, eos: tuple[int, ...] = ()) -> list[LaneResult]:
    return Sampler(eos_token_ids=eos).sample(torch.from_numpy(logits), lanes)


def _token(logits: np.ndarray, **params: object) -> int:
    (result,) = _sample(logits, lane(**params))
    assert result.token is not None
    return result.token


@pytest.mark.parametrize("width", WIDTHS)
def test_greedy_is_the_largest_logit(width: int) -> None:
    logits = random_logits(7, width)
    results = _sample(logits, *(lane(i, temperature=0.0) for i in range(7)))
    assert [result.token for result in results] == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("places", [(3, 4), (255, 256), (256, 999), (0, 998)])
def test_greedy_takes_the_lowest_of_equals(places: tuple[int, int]) -> None:
    logits = random_logits(1, 1000)
    logits[0, places] = 50.0
    assert _token(logits, temperature=0.0) == places[0]


def test_greedy_takes_the_lowest_of_equals_when_zero_has_two_signs() -> None:
    logits = np.full((1, 300), -1.0, np.float32)
    logits[0, [7, 280]] = -0.0, 0.0
    assert _token(logits, temperature=0.0) == 7


def test_a_temperature_next_to_zero_is_greedy() -> None:
    logits = random_logits(1, 700)
    for temperature in (1e-300, 1e-38, 1e-30, 1e-6):
        assert _token(logits, temperature=temperature) == logits.argmax()


def test_top_k_of_one_is_greedy() -> None:
    logits = random_logits(1, 700)
    assert {_token(logits, top_k=1, seed=seed) for seed in range(20)} == {int(logits.argmax())}


def test_top_k_keeps_the_lowest_ids_of_equals() -> None:
    logits = np.zeros((1, 600), np.float32)
    tokens = {_token(logits, top_k=3, seed=seed) for seed in range(60)}
    assert tokens == {0, 1, 2}


def test_top_p_keeps_the_lowest_ids_of_equals() -> None:
    logits = np.zeros((1, 400), np.float32)
    tokens = {_token(logits, top_p=0.01, seed=seed) for seed in range(60)}
    assert tokens == {0, 1, 2, 3}


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    logits = random_logits(1, 300)
    for seed in range(10):
        assert _token(logits, top_k=10**9, seed=seed) == _token(logits, seed=seed)


def test_min_p_of_one_keeps_the_best() -> None:
    logits = random_logits(1, 700)
    assert {_token(logits, min_p=1.0, seed=seed) for seed in range(20)} == {int(logits.argmax())}


def test_logits_stay_as_they_are() -> None:
    logits = random_logits(3, 500)
    before = logits.copy()
    _sample(
        logits,
        lane(0, output=(5, 5), presence_penalty=1.0, repetition_penalty=2.0),
        lane(1, logit_bias={3: -100.0}, top_p=0.5),
        lane(2, min_tokens=4, stop_token_ids=(1,), logprobs=3),
    )
    assert np.array_equal(logits, before)


def test_a_logit_bias_forbids_and_forces() -> None:
    logits = random_logits(1, 500)
    best = int(logits.argmax())
    assert _token(logits, temperature=0.0, logit_bias={best: -100.0}) != best
    assert _token(logits, temperature=0.0, logit_bias={17: 100.0}) == 17


def test_a_bias_outside_the_vocabulary_fails_that_lane_alone() -> None:
    logits = random_logits(2, 500)
    bad, good = _sample(logits, lane(0, logit_bias={500: 1.0}), lane(1, temperature=0.0))
    assert bad.token is None
    assert "500" in bad.error
    assert good.token == int(logits[1].argmax())


@pytest.mark.parametrize(
    ("ignore_eos", "expected"), [(False, "neither end"), (True, "not the stop token")]
)
def test_min_tokens_masks_what_would_end_the_request(ignore_eos: bool, expected: str) -> None:
    logits = np.zeros((1, 500), np.float32)
    logits[0, [9, 4, 30]] = 3.0, 2.0, 1.0  # an end token, a stop token, a word
    params = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": (9,)}
    waiting = lane(output=(7,), ignore_eos=ignore_eos, **params)
    allowed = lane(output=(7, 7), ignore_eos=ignore_eos, **params)
    (early,) = _sample(logits, waiting, eos=(4,))
    (late,) = _sample(logits, allowed, eos=(4,))
    assert late.token == 9
    assert early.token == {"neither end": 30, "not the stop token": 4}[expected]


def test_penalties_count_prompt_and_output_as_they_say() -> None:
    logits = np.full((1, 50), -5.0, np.float32)
    logits[0, [1, 2, 3]] = 4.0, 3.9, 1.0
    # Token 1 stands in the prompt only: presence and frequency leave it alone.
    assert _sample(logits, lane(prompt=(1,), temperature=0.0, presence_penalty=2.0))[0].token == 1
    assert _sample(logits, lane(prompt=(1,), temperature=0.0, repetition_penalty=2.0))[0].token == 2
    once = lane(output=(1,), temperature=0.0, frequency_penalty=0.05)
    assert _sample(logits, once)[0].token == 1
    often = lane(output=(1, 1, 1), temperature=0.0, frequency_penalty=0.05)
    assert _sample(logits, often)[0].token == 2


def test_penalties_follow_a_request_through_its_steps_and_a_retraction() -> None:
    rng = np.random.default_rng(3)
    output = rng.integers(0, 40, 150).tolist()
    params = {
        "temperature": 0.0,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
    }
    sampler = Sampler()
    logits = random_logits(1, 40, scale=1.0)
    for length in (*range(100), 60, 61, *range(100, 150)):
        row = lane(prompt=(5, 6), output=output[:length], **params)
        (result,) = sampler.sample(torch.from_numpy(logits), [row])
        assert row.sampling is not None
        assert result.token == naive_adjusted(logits[0], row, row.sampling, ()).argmax()


def test_a_number_that_comes_back_with_another_prompt_is_counted_anew() -> None:
    logits = np.zeros((1, 20), np.float32)
    sampler = Sampler()
    first = lane(prompt=(0, 1), output=(2, 3), temperature=0.0, repetition_penalty=2.0)
    sampler.sample(torch.from_numpy(logits), [first])
    sampler.forget(0)
    logits[0] = 1.0
    second = lane(prompt=(0,), temperature=0.0, repetition_penalty=2.0)
    (result,) = sampler.sample(torch.from_numpy(logits), [second])
    assert result.token == 1


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_k": 3}, {"min_tokens": 1}])
def test_logits_that_are_no_numbers_fail_that_lane_alone(
    value: float, params: dict[str, object]
) -> None:
    logits = random_logits(3, 700)
    alone = _sample(logits[[0]], lane(0, **params))[0], _sample(logits[[2]], lane(2, **params))[0]
    logits[1, 600] = value
    results = _sample(logits, *(lane(i, logprobs=2, **params) for i in range(3)))
    assert results[1].token is None
    assert results[1].error == "1 of 700 logits are not finite numbers"
    assert [results[0].token, results[2].token] == [alone[0].token, alone[1].token]


def test_a_lane_with_every_token_ruled_out_fails() -> None:
    logits = np.full((2, 300), -np.inf, np.float32)
    logits[1, 7] = 0.0
    ruled_out, forced = _sample(logits, lane(0), lane(1))
    assert "ruled out" in ruled_out.error
    assert forced.token == 7


def test_tokens_of_weight_zero_never_come() -> None:
    logits = np.full((1, 600), -np.inf, np.float32)
    logits[0, [3, 300, 599]] = 0.0
    tokens = {_token(logits, seed=seed) for seed in range(200)}
    assert tokens == {3, 300, 599}


@pytest.mark.parametrize("width", WIDTHS)
def test_logprobs_are_those_of_the_raw_distribution(width: int) -> None:
    logits = random_logits(1, width)
    exact = logits[0].astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max()).sum()) + exact.max()
    num_top = min(5, width)
    row = lane(logprobs=5, temperature=0.3, logit_bias={0: -100.0}, output=(0,), top_k=2)
    (result,) = _sample(logits, row)
    assert result.logprobs is not None
    assert result.logprobs.token == result.token
    assert result.logprobs.logprob == pytest.approx(exact[result.token], abs=1e-6)
    best = np.argsort(-exact, kind="stable")[:num_top]
    assert [token for token, _ in result.logprobs.top] == best.tolist()
    assert [lp for _, lp in result.logprobs.top] == pytest.approx(exact[best], abs=1e-6)


def test_logprobs_of_equals_come_in_the_order_of_their_ids() -> None:
    logits = np.zeros((1, 600), np.float32)
    (result,) = _sample(logits, lane(logprobs=4))
    assert result.logprobs is not None
    assert [token for token, _ in result.logprobs.top] == [0, 1, 2, 3]


def test_no_logprobs_unless_asked() -> None:
    plain, chosen = _sample(random_logits(2, 300), lane(0), lane(1, logprobs=0))
    assert plain.logprobs is None
    assert chosen.logprobs is not None
    assert chosen.logprobs.top == ()


def test_prompt_logprobs_are_row_by_row() -> None:
    logits = random_logits(5, 700)
    targets = np.array([0, 699, 256, 3, 5], np.int32)
    found = Sampler().prompt_logprobs(torch.from_numpy(logits), targets, 3)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    assert [entry.token for entry in found] == targets.tolist()
    assert [entry.logprob for entry in found] == pytest.approx(exact[range(5), targets], abs=1e-6)
    assert [entry.top[0][0] for entry in found] == exact.argmax(axis=1).tolist()
    assert all(len(entry.top) == 3 for entry in found)


def test_prompt_logprobs_of_a_row_without_numbers_are_nan() -> None:
    logits = random_logits(2, 300)
    logits[0, 3] = np.nan
    bad, good = Sampler().prompt_logprobs(torch.from_numpy(logits), np.array([1, 1], np.int32), 2)
    assert np.isnan(bad.logprob)
    assert bad.top == ()
    assert np.isfinite(good.logprob)


def test_what_is_no_matrix_of_float32_is_refused() -> None:
    for logits in (torch.zeros(3), torch.zeros((1, 3), dtype=torch.float64)):
        with pytest.raises(ValueError, match="float32"):
            Sampler().sample(logits, [lane()])


def test_a_lane_inside_its_prompt_is_refused() -> None:
    row = lane()
    inside = Lane(
        **{name: getattr(row, name) for name in row.__slots__ if name != "sampling"}, sampling=None
    )
    with pytest.raises(ValueError, match="does not sample"):
        Sampler().sample(torch.zeros((1, 5)), [inside])


def test_no_lanes_give_no_results() -> None:
    assert Sampler().sample(torch.zeros((0, 5)), []) == []


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, temperature=0.6),
        SamplingParams(max_tokens=1, top_k=7),
        SamplingParams(max_tokens=1, top_p=0.8),
        SamplingParams(max_tokens=1, min_p=0.1),
        SamplingParams(max_tokens=1, top_k=20, top_p=0.9, min_p=0.02, temperature=1.5),
    ],
    ids=["plain", "cool", "top_k", "top_p", "min_p", "all"],
)
def test_tokens_come_as_often_as_they_should(params: SamplingParams) -> None:
    """Chi-square over 4000 seeds; the seeds are fixed, so that the test cannot flicker."""
    num_draws = 4000
    logits = random_logits(1, 40, seed=5, scale=1.2)
    expected = naive_distribution(logits[0], params) * num_draws
    many = np.repeat(logits, 500, axis=0)
    fields = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    counts = np.zeros(40)
    for first in range(0, num_draws, 500):
        lanes = [lane(i, seed=first + i, **fields) for i in range(500)]
        for result in _sample(many, *lanes):
            counts[result.token] += 1
    assert not counts[expected == 0].any()
    likely = expected > 5
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    degrees = int(likely.sum()) - 1
    # Mean + 4 standard deviations of the chi-square distribution.
    assert statistic < degrees + 4 * np.sqrt(2 * degrees)


def test_tokens_of_one_request_are_as_independent_as_those_of_many() -> None:
    logits = np.zeros((1, 2), np.float32)
    flips = [_sample(logits, lane(output=(0,) * index, seed=11))[0].token for index in range(1000)]
    pairs = np.bincount([2 * a + b for a, b in itertools.pairwise(flips)], minlength=4)
    assert (abs(pairs - 999 / 4) < 4 * np.sqrt(999 * 0.25 * 0.75)).all()
