"""What a lane gets depends on its own row, parameters, seed and position: bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sampling_lanes import lane, random_logits
from twinpool.engine.choose import ScannedRows, choose
from twinpool.engine.draw import pick, uniform
from twinpool.engine.sampler import Sampler
from twinpool.engine.vocab_scan import collect, count_below_best, scan_blocks, scan_blocks_plain
from twinpool.scheduling.plan import Lane, LaneResult
from twinpool.scheduling.sampling import SamplingParams

FIRST_NUMBER = 0.6524484863740322

# One lane of every kind, so that kinds are mixed in every batch.
KINDS = (
    {"temperature": 0.0},
    {"seed": 1},
    {"seed": 2, "temperature": 0.7, "top_k": 20},
    {"seed": 3, "top_p": 0.9},
    {"seed": 4, "min_p": 0.05},
    {"seed": 5, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"seed": 6, "logit_bias": {3: 5.0}, "top_k": 5, "top_p": 0.5},
    {"seed": 7, "min_tokens": 3, "stop_token_ids": (4,)},
    {"temperature": 0.0, "frequency_penalty": 1.0},
)


def _lanes(width: int) -> list[Lane]:
    rng = np.random.default_rng(0)
    return [
        lane(
            number,
            prompt=rng.integers(0, width, 9).tolist(),
            output=rng.integers(0, width, number % 4).tolist(),
            logprobs=number % 3,
            **KINDS[number % len(KINDS)],
        )
        for number in range(3 * len(KINDS))
    ]


def _sample(sampler: Sampler, logits: np.ndarray, lanes: list[Lane]) -> list[LaneResult]:
    return sampler.sample(torch.from_numpy(logits), lanes)


@pytest.mark.parametrize("width", [33, 1600, 4097])
def test_batch_mates_and_their_order_change_nothing(width: int) -> None:
    lanes = _lanes(width)
    logits = random_logits(len(lanes), width, seed=8)
    alone = [_sample(Sampler(), logits[[index]], [entry])[0] for index, entry in enumerate(lanes)]
    rng = np.random.default_rng(1)
    for _ in range(6):
        chosen = rng.permutation(len(lanes))[: rng.integers(1, len(lanes) + 1)]
        results = _sample(Sampler(), logits[chosen], [lanes[index] for index in chosen])
        assert results == [alone[index] for index in chosen]


def test_the_number_of_threads_changes_nothing() -> None:
    import numba

    lanes = _lanes(40_000)
    logits = random_logits(len(lanes), 40_000, seed=9)
    several = _sample(Sampler(), logits, lanes)
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert _sample(Sampler(), logits, lanes) == several
    finally:
        numba.set_num_threads(before)


def test_where_a_row_lies_in_memory_changes_nothing() -> None:
    row = random_logits(1, 3001, seed=2)
    entry = lane(seed=9, top_p=0.95, logprobs=5)
    expected = _sample(Sampler(), row, [entry])
    for shift in range(1, 20):
        room = np.zeros(3001 + shift, np.float32)
        room[shift:] = row[0]
        assert _sample(Sampler(), room[None, shift:], [entry]) == expected


def test_a_restart_in_the_middle_changes_nothing() -> None:
    logits = random_logits(30, 500, seed=4)
    settings = {"seed": 77, "presence_penalty": 0.5, "repetition_penalty": 1.1, "top_p": 0.9}

    def run(restart_at: int) -> list[int]:
        sampler, output = Sampler(), []
        for step in range(30):
            if step == restart_at:
                sampler = Sampler()
            result = _sample(sampler, logits[[step]], [lane(output=output, **settings)])[0]
            output.append(result.token)
        return output

    assert run(restart_at=13) == run(restart_at=-1)


def test_other_seeds_and_positions_give_other_numbers() -> None:
    numbers = {uniform(seed, position) for seed in range(-50, 50) for position in range(50)}
    assert len(numbers) == 100 * 50


def test_numbers_stay_what_they_are() -> None:
    """A change here changes every seeded answer that a client has kept."""
    assert [uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(-1, 5)] == [
        uniform(2**64, 0),
        uniform(2**64, 1),
        uniform(1 + 2**64, 0),
        uniform(2**64 - 1, 5),
    ]
    assert uniform(0, 0) == FIRST_NUMBER


def test_numbers_are_spread_evenly_over_seeds_and_over_positions() -> None:
    over_seeds = [uniform(seed, 0) for seed in range(10_000)]
    over_positions = [uniform(12345, position) for position in range(10_000)]
    for numbers in (over_seeds, over_positions):
        assert min(numbers) >= 0.0
        assert max(numbers) < 1.0
        counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 49 + 4 * np.sqrt(98)


def test_pick_never_takes_a_weight_of_zero() -> None:
    weights = np.array([0.0, 1.0, 0.0, 2.0, 0.0])
    assert pick(weights, 0.0) == 1
    assert pick(weights, 1.0 / 3.0) == 3
    assert pick(weights, np.nextafter(1.0, 0.0)) == 3
    # A target that rounding lifted to the total still means the last weight above zero.
    assert pick(weights, 1.0) == 3


@pytest.mark.parametrize("share", [0.0, 0.3, np.nextafter(1.0, 0.0), 1.0])
def test_the_ends_of_the_distribution_hold_no_ruled_out_token(share: float) -> None:
    logits = np.full((1, 1000), -np.inf, np.float32)
    logits[0, [300, 310, 600]] = 0.0
    rows = np.zeros(1, np.int64)
    scan = ScannedRows(logits, rows, *scan_blocks(logits, rows, np.ones(1)))
    (token,) = choose(scan, [SamplingParams(max_tokens=1)], [share])
    assert token == (300 if share < 0.33 else 600)


@pytest.mark.parametrize("width", [1, 63, 255, 256, 257, 1000, 4096])
@pytest.mark.parametrize("factor", [0.0, 0.25, 1.0, 40.0])
def test_the_scan_equals_its_twin(width: int, factor: float) -> None:
    logits = random_logits(4, width, seed=width)
    logits[1, width // 2 :] = -np.inf
    logits[2, width // 3] = np.nan
    rows = np.array([3, 0, 1, 2, 0])
    factors = np.full(5, factor)
    maxima, sums = scan_blocks(logits, rows, factors)
    plain_maxima, plain_sums = scan_blocks_plain(logits, rows, factors)
    assert np.array_equal(maxima, plain_maxima, equal_nan=True)
    sound = np.isfinite(maxima)
    assert np.allclose(sums[sound], plain_sums[sound], rtol=2e-6, atol=0)
    assert not sums[maxima == -np.inf].any()


@pytest.mark.parametrize("factor", [0.0, 0.7])
def test_one_thread_and_all_threads_find_the_same_bits(factor: float) -> None:
    row = random_logits(1, 200_001, seed=6)
    alone = scan_blocks(row, np.zeros(1, np.int64), np.full(1, factor))
    together = scan_blocks(row, np.zeros(4, np.int64), np.full(4, factor))
    for one, four in zip(alone, together, strict=True):
        assert all(np.array_equal(one[0], found) for found in four)


@pytest.mark.parametrize("width", [1, 256, 1000])
def test_collecting_equals_comparing(width: int) -> None:
    row = random_logits(1, width, seed=1)[0]
    maxima, _ = scan_blocks(row[None], np.zeros(1, np.int64), np.zeros(1))
    for bound in (-np.inf, -2.0, float(row[width // 2]), float(row.max()), 1e9):
        ids, logits = collect(row, maxima[0], bound)
        assert np.array_equal(ids, np.flatnonzero(row >= bound))
        assert np.array_equal(logits, row[ids])


def test_counting_below_the_best_equals_a_histogram() -> None:
    row = random_logits(1, 3000, seed=1)[0]
    row[5] = -np.inf
    best = row.max()
    counts = count_below_best(row, float(best), 8.0, 40)
    places = np.floor((best - row) * np.float32(8.0))
    assert counts.tolist() == [int((places == bucket).sum()) for bucket in range(40)]
