"""Chooses one token per row from scanned logits: greedy, a plain draw, or a draw after filters.

Knows no request beyond its parameters and its uniform number; what is done to logits first, and
logprobs, are others' work. A row's token depends on its own row and parameters alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twinpool.engine.candidates import RowScan, block_weights, filtered, is_filtered
from twinpool.engine.draw import pick
from twinpool.engine.vocab_scan import BLOCK, FloatArray, IntArray
from twinpool.scheduling.sampling import SamplingParams

_IN_BLOCK = np.arange(BLOCK)
_LARGEST_FACTOR = 1e37


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Rows of a batch and what the scan found in them; arrays are views, read only.

    Attributes:
        logits: float32 `[n, V]`.
        rows: `[j]` which rows of `logits`.
        maxima: `[j, blocks]` block maxima.
        sums: `[j, blocks]` block sums.
    """

    logits: FloatArray
    rows: IntArray
    maxima: FloatArray
    sums: FloatArray

    @property
    def best(self) -> npt.NDArray[np.float64]:
        """The largest logit of every row; NaN where a row holds a NaN."""
        best: npt.NDArray[np.float64] = self.maxima.max(axis=1).astype(np.float64)
        return best

    def row(self, index: int, best: float) -> RowScan:
        """Return one row."""
        return RowScan(self.logits[self.rows[index]], self.maxima[index], self.sums[index], best)

    def gather(self, picked: IntArray, blocks: IntArray) -> FloatArray:
        """Return one block of each of some rows, `-inf` beyond the vocabulary.

        Args:
            picked: `[g]` indices into `rows`.
            blocks: `[g]` the block of each.
        """
        width = self.logits.shape[1]
        ids = blocks[:, None] * BLOCK + _IN_BLOCK
        values: FloatArray = self.logits[self.rows[picked][:, None], np.minimum(ids, width - 1)]
        values[ids >= width] = -np.inf
        return values


def inverse_temperature(params: SamplingParams) -> float:
    """Return the factor on the logits; 0 for a greedy choice.

    A temperature so low that the factor is no float32 differs from greedy in nothing.
    """
    if params.is_greedy or params.temperature < 1.0 / _LARGEST_FACTOR:
        return 0.0
    return 1.0 / params.temperature


def choose(
    scan: ScannedRows, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> IntArray:
    """Choose a token for every row.

    Args:
        scan: The rows, whose largest logits are finite, with sums at each row's temperature.
        params: `[j]` parameters.
        uniforms: `[j]` numbers in [0, 1); a greedy row's is not looked at.

    Returns:
        `[j]` token ids.
    """
    width = scan.logits.shape[1]
    tokens = np.empty(len(params), np.int64)
    greedy, plain = [], []
    for index, row_params in enumerate(params):
        if inverse_temperature(row_params) == 0.0:
            greedy.append(index)
        elif not is_filtered(row_params, width):
            plain.append(index)
        else:
            row = scan.row(index, float(scan.maxima[index].max()))
            ids, weights = filtered(row, row_params)
            tokens[index] = ids[pick(weights, uniforms[index])]
    if greedy:
        picked = np.array(greedy)
        tokens[picked] = _most_likely(scan, picked)
    if plain:
        picked = np.array(plain)
        inverse = np.array([inverse_temperature(params[index]) for index in plain])
        shares = np.array([uniforms[index] for index in plain])
        tokens[picked] = _drawn(scan, picked, inverse, shares)
    return tokens


def _most_likely(scan: ScannedRows, picked: IntArray) -> IntArray:
    # argmax takes the first of equals, in the blocks and in the block.
    blocks = scan.maxima[picked].argmax(axis=1)
    inside = scan.gather(picked, blocks).argmax(axis=1)
    tokens: IntArray = blocks * BLOCK + inside
    return tokens


def _drawn(
    scan: ScannedRows,
    picked: IntArray,
    inverse: npt.NDArray[np.float64],
    shares: npt.NDArray[np.float64],
) -> IntArray:
    """Draw by inverse CDF in the order of token ids: first the block, then the token in it."""
    maxima = scan.maxima[picked]
    best = maxima.max(axis=1).astype(np.float64)
    sums = np.cumsum(
        block_weights(maxima, scan.sums[picked], best[:, None], inverse[:, None]), axis=1
    )
    targets = shares * sums[:, -1]
    blocks = _first_above(sums, targets)
    lanes = np.arange(len(picked))
    before = np.where(blocks > 0, sums[lanes, np.maximum(blocks - 1, 0)], 0.0)
    # The share of the block that is left, so that its own exact sum may differ in the last digit.
    left = (targets - before) / (sums[lanes, blocks] - before)
    values = scan.gather(picked, blocks).astype(np.float64)
    highest = values.max(axis=1, keepdims=True)
    weights = np.exp((values - highest) * inverse[:, None])
    inner = np.cumsum(weights, axis=1)
    tokens: IntArray = blocks * BLOCK + _first_above(inner, left * inner[:, -1])
    return tokens


def _first_above(sums: npt.NDArray[np.float64], targets: npt.NDArray[np.float64]) -> IntArray:
    """Return the first index of every row whose running sum is above the row's target.

    Rounding may lift a target to the total: then the last index that added something is meant.
    """
    above = (sums <= targets[:, None]).sum(axis=1)
    last = (sums < sums[:, -1:]).sum(axis=1)
    found: IntArray = np.minimum(above, last)
    return found
