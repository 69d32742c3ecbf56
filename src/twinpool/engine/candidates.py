"""Which tokens are left to choose from: top-k, top-p, min-p over the blocks of one row.

Knows neither penalties nor randomness. Only tokens above a bound that the filters imply are ever
gathered, never the whole vocabulary. Equal logits rank by the lower token id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twinpool.engine.vocab_scan import FloatArray, IntArray, collect, count_below_best
from twinpool.scheduling.sampling import SamplingParams

Weights = npt.NDArray[np.float64]

# How many blocks' best tokens are tried as a set that holds the top-p tokens.
_FEW_BLOCKS = (16, 128)
_BUCKETS_PER_NAT = 64
_BUCKET_WEIGHTS = np.exp(-(np.arange(32 * _BUCKETS_PER_NAT) + 0.5) / _BUCKETS_PER_NAT)


@dataclass(frozen=True, slots=True)
class RowScan:
    """One row of logits and what the scan found in its blocks; views, read only.

    Attributes:
        logits: float32 `[V]`.
        maxima: Block maxima.
        sums: Block sums at the row's temperature; zeros when they were not asked for.
        best: The largest logit, finite.
    """

    logits: FloatArray
    maxima: FloatArray
    sums: FloatArray
    best: float

    def total(self, inv_temperature: float) -> float:
        """Return the sum of `exp((x - best) * inv_temperature)` over the row."""
        return float(block_weights(self.maxima, self.sums, self.best, inv_temperature).sum())


def block_weights(
    maxima: FloatArray,
    sums: FloatArray,
    best: float | npt.NDArray[np.float64],
    inv_temperature: float | npt.NDArray[np.float64],
) -> Weights:
    """Return each block's share of the row, as weights relative to the best token.

    Args:
        maxima: `[..., blocks]` from the scan, at least one finite per row.
        sums: The same shape.
        best: The largest of `maxima`; broadcasts over the blocks.
        inv_temperature: Broadcasts over the blocks.
    """
    exponents = (maxima.astype(np.float64) - best) * inv_temperature
    return sums.astype(np.float64) * np.exp(exponents)


def best_tokens(row: RowScan, count: int) -> tuple[IntArray, FloatArray]:
    """Return the `count` most likely tokens; all, if there are fewer.

    Returns:
        Their ids, rising, and their logits.
    """
    bound = -np.inf
    if count < len(row.maxima):
        # As many blocks reach this maximum, so at least as many tokens do.
        bound = float(np.partition(row.maxima, -count)[-count])
    return _first(*collect(row.logits, row.maxima, bound), count)


def filtered(row: RowScan, params: SamplingParams) -> tuple[IntArray, Weights]:
    """Apply top-k, then top-p to what it leaves, then min-p.

    Args:
        row: Logits before the temperature.
        params: At least one filter is on; the temperature is above 0.

    Returns:
        Ids, rising, and weights (`exp` of the scaled logit, relative to the best token).

    Source:
        The order of the `transformers` logits warpers.
    """
    inverse = 1.0 / params.temperature
    if 0 < params.top_k < len(row.logits):
        ids, logits = best_tokens(row, params.top_k)
        total = float(_weights(logits, row.best, inverse).sum())
    elif params.top_p < 1.0:
        total = row.total(inverse)
        ids, logits = _may_reach(row, params, total)
    else:
        total = 0.0
        bound = row.best + math.log(params.min_p) * params.temperature
        ids, logits = collect(row.logits, row.maxima, bound)
    if params.top_p < 1.0:
        # Values sort far faster than places do, and only the value at the cut is needed.
        falling = -np.sort(-logits)
        sums = np.cumsum(_weights(falling, row.best, inverse))
        reach = int(np.searchsorted(sums, params.top_p * total, side="left")) + 1
        ids, logits = _first(ids, logits, reach)
    weights = _weights(logits, row.best, inverse)
    if params.min_p > 0.0:
        kept = weights >= params.min_p
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def is_filtered(params: SamplingParams, width: int) -> bool:
    """Return True when a filter is on.

    Args:
        params: The request's.
        width: Size of the vocabulary: a top-k of as many keeps all.
    """
    return 0 < params.top_k < width or params.top_p < 1.0 or params.min_p > 0.0


def _may_reach(row: RowScan, params: SamplingParams, total: float) -> tuple[IntArray, FloatArray]:
    """Return a superset of the top-p set, small where the distribution is peaked."""
    inverse = 1.0 / params.temperature
    for bound in _falling_bounds(row, params, total):
        ids, logits = collect(row.logits, row.maxima, bound)
        # All tokens above a bound, and they reach p: then the smallest such set is among them.
        if float(_weights(logits, row.best, inverse).sum()) >= params.top_p * total:
            return ids, logits
    return collect(row.logits, row.maxima, -np.inf)


def _falling_bounds(row: RowScan, params: SamplingParams, total: float) -> Iterator[float]:
    """Yield guesses of a logit above which tokens reach p: quick ones first."""
    for count in _FEW_BLOCKS:
        if count < len(row.maxima):
            yield float(np.partition(row.maxima, -count)[-count])
    scale = _BUCKETS_PER_NAT / params.temperature
    counts = count_below_best(row.logits, row.best, scale, len(_BUCKET_WEIGHTS))
    reached = np.cumsum(counts * _BUCKET_WEIGHTS) >= params.top_p * total
    # One bucket more, because tokens do not lie in the middle of theirs.
    yield row.best - (int(reached.argmax()) + 2) / scale if reached.any() else -np.inf


def _first(ids: IntArray, logits: FloatArray, count: int) -> tuple[IntArray, FloatArray]:
    """Return the `count` best of some tokens; of equals at the border those with the lowest ids."""
    if count >= len(ids):
        return ids, logits
    border = np.partition(logits, -count)[-count]
    kept = logits > border
    equals = np.flatnonzero(logits == border)
    kept[equals[: count - int(np.count_nonzero(kept))]] = True
    return ids[kept], logits[kept]


def _weights(logits: FloatArray, best: float, inverse: float) -> Weights:
    weights: Weights = np.exp((logits.astype(np.float64) - best) * inverse)
    return weights
