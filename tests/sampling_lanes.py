"""Lanes and logits for sampler tests, and the sampler's slow twin in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twinpool.scheduling.plan import Lane
from twinpool.scheduling.sampling import SamplingParams

Logits = npt.NDArray[np.float32]


def lane(
    request_id: int = 0,
    *,
    prompt: Sequence[int] = (1, 2, 3),
    output: Sequence[int] = (),
    **params: Any,
) -> Lane:
    """Return a lane that is about to sample the token after `prompt + output`."""
    tokens = np.array([*prompt, *output], np.int32)
    return Lane(
        request_id=request_id,
        start=len(tokens) - 1,
        end=len(tokens),
        tokens=tokens,
        num_prompt=len(prompt),
        rows=np.zeros(len(tokens), np.int32),
        slot=0,
        checkpoints=(),
        sampling=SamplingParams(max_tokens=10_000, **params),
        output_index=len(output),
    )


def random_logits(num_rows: int, width: int, seed: int = 0, scale: float = 3.0) -> Logits:
    """Return seeded logits, float32 `[num_rows, width]`."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((num_rows, width)) * scale).astype(np.float32)


def naive_distribution(
    row: npt.NDArray[np.floating[Any]], params: SamplingParams
) -> npt.NDArray[np.float64]:
    """Return the probabilities that the filters leave: whole sorts, float64, no shortcuts."""
    scaled = row.astype(np.float64) / params.temperature
    order = np.argsort(-scaled, kind="stable")
    weights = np.exp(scaled - scaled.max())
    kept = np.ones(len(row), np.bool_)
    if params.top_k > 0:
        kept[order[params.top_k :]] = False
    weights = weights * kept
    if params.top_p < 1.0:
        sums = np.cumsum(weights[order]) / weights.sum()
        num_kept = int(np.argmax(sums >= params.top_p)) + 1
        if sums[-1] < params.top_p:
            num_kept = len(row)
        kept[order[num_kept:]] = False
        weights = weights * kept
    weights = np.where(weights >= params.min_p * weights.max(), weights, 0.0)
    return weights / weights.sum()


def naive_adjusted(
    row: Logits, lane: Lane, params: SamplingParams, ends: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return the logits that penalties, bias and `min_tokens` leave, token by token."""
    adjusted = row.astype(np.float64)
    prompt = lane.tokens[: lane.num_prompt].tolist()
    output = lane.tokens[lane.num_prompt :].tolist()
    for token in set(prompt + output):
        value = adjusted[token]
        penalty = params.repetition_penalty
        adjusted[token] = value / penalty if value > 0 else value * penalty
    for token in set(output):
        adjusted[token] -= params.frequency_penalty * output.count(token)
        adjusted[token] -= params.presence_penalty
    for token, bias in params.logit_bias.items():
        adjusted[token] += bias
    if lane.output_index < params.min_tokens:
        adjusted[list(ends)] = -np.inf
    return adjusted
