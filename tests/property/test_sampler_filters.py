"""Each filter, and all of them together, against the plain float64 twin."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling_lanes import lane, naive_adjusted, naive_distribution, random_logits
from twinpool.engine.candidates import RowScan, filtered
from twinpool.engine.sampler import Sampler
from twinpool.engine.vocab_scan import scan_blocks
from twinpool.scheduling.sampling import SamplingParams

WIDTHS = st.sampled_from([1, 5, 255, 256, 257, 700, 4500, 40_000])
PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.05, 0.6, 1.0, 2.5, 100.0]),
        "top_k": st.sampled_from([0, 1, 2, 19, 300, 39_999]),
        "top_p": st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 0.9999999, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-5, 0.1, 1.0]),
    }
)


def _logits(width: int, seed: int, scale: float, shape: str) -> np.ndarray:
    row = random_logits(1, width, seed, scale)[0]
    if shape == "ties":
        row = np.round(row)
    elif shape == "peaked":
        row[:: max(1, width // 5)] += 20.0
    elif shape == "masked":
        row[::3] = -np.inf
        row[-1] = 1.0
    return row.astype(np.float32)


def _scan(row: np.ndarray, temperature: float) -> RowScan:
    maxima, sums = scan_blocks(row[None], np.zeros(1, np.int64), np.array([1.0 / temperature]))
    return RowScan(row, maxima[0], sums[0], float(row.max()))


@settings(max_examples=200, deadline=None)
@given(
    WIDTHS,
    st.integers(0, 5),
    st.sampled_from([0.3, 3.0]),
    st.sampled_from(["plain", "ties", "peaked", "masked"]),
    PARAMS,
)
def test_filters_leave_what_the_twin_leaves(
    width: int, seed: int, scale: float, shape: str, fields: dict[str, float]
) -> None:
    if fields["top_k"] in (0,) and fields["top_p"] == 1.0 and fields["min_p"] == 0.0:
        fields["top_p"] = 0.7
    params = SamplingParams(max_tokens=1, **fields)
    row = _logits(width, seed, scale, shape)
    expected = naive_distribution(row, params)
    if not (0 < params.top_k < width or params.top_p < 1.0 or params.min_p > 0.0):
        return
    ids, weights = filtered(_scan(row, params.temperature), params)
    found = np.zeros(width)
    found[ids] = weights / weights.sum()
    assert np.array_equal(ids, np.sort(ids))
    # A token whose running sum meets p to the last digits may fall on either side of the border.
    differing = np.flatnonzero((found > 0) != (expected > 0))
    assert len(differing) <= 1 or params.top_p > 0.99999
    assert found[differing].sum() + expected[differing].sum() < 2e-6 or len(differing) == 1
    if not len(differing):
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(0, 59), max_size=12),
    st.lists(st.integers(0, 59), max_size=12),
    st.sampled_from([1.0, 0.7, 1.5]),
    st.sampled_from([0.0, -1.5, 0.6]),
    st.sampled_from([0.0, -0.3, 2.0]),
    st.dictionaries(st.integers(0, 59), st.sampled_from([-100.0, -2.0, 3.0]), max_size=4),
    st.sampled_from([0, 3, 30]),
)
def test_penalties_bias_and_mask_equal_the_twin(
    seed: int,
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
    min_tokens: int,
) -> None:
    logits = random_logits(1, 60, seed)
    row = lane(
        prompt=[1, *prompt],
        output=output,
        temperature=0.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        min_tokens=min_tokens,
        stop_token_ids=(7, 8),
    )
    sampler = Sampler(eos_token_ids=(9,))
    (result,) = sampler.sample(torch.from_numpy(logits), [row])
    assert row.sampling is not None
    exact = naive_adjusted(logits[0], row, row.sampling, (7, 8, 9))
    assert exact[result.token] >= exact.max() - 1e-5


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([3, 256, 1000]), st.sampled_from([0.2, 1.0, 3.0]))
def test_a_plain_draw_is_the_inverse_of_the_distribution(
    seed: int, width: int, temperature: float
) -> None:
    """The token at whose running probability the uniform number falls, in the order of ids."""
    from twinpool.engine.draw import uniform

    logits = random_logits(1, width, seed)
    row = lane(seed=seed, temperature=temperature)
    (result,) = Sampler().sample(torch.from_numpy(logits), [row])
    assert row.sampling is not None
    sums = np.cumsum(naive_distribution(logits[0], row.sampling))
    share = uniform(seed, 0)
    assert result.token is not None
    before = sums[result.token - 1] if result.token else 0.0
    assert before - 1e-6 <= share <= sums[result.token] + 1e-6
