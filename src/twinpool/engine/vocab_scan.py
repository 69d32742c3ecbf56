"""One pass over logits: the maximum and the sum of exponentials of every block of the vocabulary.

Knows no sampling parameter. A block is 256 logits, summed in one fixed order whatever else is in
the batch, so that a row's numbers never depend on its neighbours. What samplers then need (the best
token, a normaliser, the tokens above a bound) is read off the blocks, without a second pass.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from twinpool.kernels.threads import workers

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

BLOCK = 256

# So few are scanned by one thread: waking the others, who may be busy, would take longer.
_FEW_LOGITS = 2**19

_LOG2_E = 1.0 / math.log(2.0)
# Below this power of two a weight is nothing against the block's best, which has weight 1.
_LEAST_EXPONENT = np.float32(-126.0)
_HALF = np.float32(0.5)
_EXPONENT_BIAS = np.int32(127)
_MANTISSA_BITS = np.int32(23)
_ABS_MASK = np.int32(0x7FFFFFFF)
_INFINITY_BITS = np.int32(0x7F800000)
_SIGN_SHIFT = np.int32(31)
_LEAST_INT = np.int32(-(2**31))
# 2**f for f in [-0.5, 0.5], minimax, relative error 2e-7.
_P6, _P5, _P4 = np.float32(1.5353362e-4), np.float32(1.3398874e-3), np.float32(9.6184370e-3)
_P3, _P2, _P1 = np.float32(5.5503324e-2), np.float32(2.4022648e-1), np.float32(6.9314720e-1)
_ONE = np.float32(1.0)


def scan_blocks(
    logits: FloatArray, rows: IntArray, inv_temperatures: npt.NDArray[np.float64]
) -> tuple[FloatArray, FloatArray]:
    """Scan some rows of a batch.

    Args:
        logits: float32 `[n, V]`, C order; read only.
        rows: `[j]` which rows; a row may come more than once.
        inv_temperatures: `[j]` factor on the logits in the exponential; 0 leaves sums out.

    Returns:
        `maxima` and `sums`, new float32 `[j, ceil(V / 256)]`. A sum is that of
        `exp((x - block maximum) * inv_temperature)`, at least 1. A block that holds a NaN has
        maximum NaN; one of `-inf` only has sum 0.

    Cost:
        One read of the rows: 0.1 ms (maxima) or 0.3 ms (with sums) for 32 rows of 32,000 on two
        cores with AVX-512.
    """
    num_blocks = -(-logits.shape[1] // BLOCK)
    maxima = np.empty((len(rows), num_blocks), np.float32)
    sums = np.zeros((len(rows), num_blocks), np.float32)
    scales = (inv_temperatures * _LOG2_E).astype(np.float32)
    workers()  # settles how many threads there are, before the first parallel loop
    scan = _scan_alone if len(rows) * logits.shape[1] <= _FEW_LOGITS else _scan
    scan(logits, logits.view(np.int32), rows, scales, maxima, sums)
    return maxima, sums


def scan_blocks_plain(
    logits: FloatArray, rows: IntArray, inv_temperatures: npt.NDArray[np.float64]
) -> tuple[FloatArray, FloatArray]:
    """Do what `scan_blocks` does in plain NumPy and float64: the slow twin that proves it."""
    num_blocks = -(-logits.shape[1] // BLOCK)
    padded = np.full((len(rows), num_blocks * BLOCK), -np.inf)
    padded[:, : logits.shape[1]] = logits[rows]
    blocks = padded.reshape(len(rows), num_blocks, BLOCK)
    maxima = blocks.max(axis=2)
    with np.errstate(invalid="ignore", over="ignore"):
        exponents = (blocks - maxima[:, :, None]) * inv_temperatures[:, None, None]
        sums = np.exp(exponents).sum(axis=2)
    sums[(maxima == -np.inf) | (inv_temperatures == 0)[:, None]] = 0.0
    return maxima.astype(np.float32), sums.astype(np.float32)


def collect(row: FloatArray, maxima: FloatArray, bound: float) -> tuple[IntArray, FloatArray]:
    """Return the tokens of one row whose logit is `bound` or more.

    Args:
        row: float32 `[V]`; read only.
        maxima: float32 `[blocks]`, its block maxima; only blocks that reach the bound are read.
        bound: `-inf` takes all.

    Returns:
        Their ids, rising, and their logits; new arrays.
    """
    ids, logits = _collect(row, maxima, bound)
    return ids, logits


def count_below_best(row: FloatArray, best: float, scale: float, num_buckets: int) -> IntArray:
    """Count the tokens of one row by how far below the best one they lie.

    Args:
        row: float32 `[V]`; read only.
        best: Its maximum.
        scale: Buckets per unit of logit, above 0.
        num_buckets: Tokens that lie lower than the last bucket are not counted.

    Returns:
        New int64 `[num_buckets]`; bucket i counts those `i / scale` to `(i + 1) / scale` below.
    """
    counts: IntArray = _count_below(row, np.float32(best), np.float32(scale), num_buckets)
    return counts


def compile_scans() -> None:
    """Compile everything here, or load it from the cache, so that no request waits for it."""
    logits = np.zeros((1, _FEW_LOGITS // 2), np.float32)
    for num_rows in (1, 3):  # alone and together
        maxima, _ = scan_blocks(logits, np.zeros(num_rows, np.int64), np.ones(num_rows))
    collect(logits[0], maxima[0], 0.0)
    count_below_best(logits[0], 0.0, 1.0, 1)


@njit(cache=True)
def _collect(row, maxima, bound):  # type: ignore[no-untyped-def]
    width = row.shape[0]
    room = 0
    for block in range(maxima.shape[0]):
        if maxima[block] >= bound:
            room += BLOCK
    ids = np.empty(room, np.int64)
    logits = np.empty(room, np.float32)
    found = 0
    for block in range(maxima.shape[0]):
        if maxima[block] >= bound:
            for index in range(block * BLOCK, min(width, (block + 1) * BLOCK)):
                # Written always and kept only when it counts: no branch to guess wrong.
                ids[found] = index
                logits[found] = row[index]
                found += row[index] >= bound
    return ids[:found], logits[:found]


@njit(cache=True)
def _count_below(row, best, scale, num_buckets):  # type: ignore[no-untyped-def]
    counts = np.zeros(num_buckets + 1, np.int64)
    last = np.float32(num_buckets)
    for index in range(row.shape[0]):
        counts[np.int64(min((best - row[index]) * scale, last))] += 1
    return counts[:num_buckets]


@njit(cache=True, inline="never")
def _block_maximum(bits):  # type: ignore[no-untyped-def]
    # As integers, floats of the same sign keep their order, and the loop needs no NaN rules to
    # be vectorised.
    best = _LEAST_INT
    largest = np.int32(0)
    for index in range(bits.shape[0]):
        raw = bits[index]
        best = max(best, np.int32(raw ^ ((raw >> _SIGN_SHIFT) & _ABS_MASK)))
        largest = max(largest, np.int32(raw & _ABS_MASK))
    if largest > _INFINITY_BITS:
        return np.float32(np.nan)
    return np.int32(best ^ ((best >> _SIGN_SHIFT) & _ABS_MASK)).view(np.float32)


@njit(cache=True, inline="never", fastmath={"reassoc", "contract", "nsz"})
def _block_sum(block, shift, scale):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for index in range(block.shape[0]):
        power = max((block[index] - shift) * scale, _LEAST_EXPONENT)
        whole = np.floor(power + _HALF)
        part = power - whole
        mantissa = _P6
        mantissa = mantissa * part + _P5
        mantissa = mantissa * part + _P4
        mantissa = mantissa * part + _P3
        mantissa = mantissa * part + _P2
        mantissa = mantissa * part + _P1
        mantissa = mantissa * part + _ONE
        exponent = np.int32((np.int32(whole) + _EXPONENT_BIAS) << _MANTISSA_BITS)
        total += mantissa * exponent.view(np.float32)
    return total


@njit(cache=True, inline="never")
def _scan_one(job, logits, bits, rows, scales, maxima, sums):  # type: ignore[no-untyped-def]
    num_blocks = maxima.shape[1]
    index = job // num_blocks
    block = job % num_blocks
    row = rows[index]
    low = block * BLOCK
    high = min(logits.shape[1], low + BLOCK)
    best = _block_maximum(bits[row, low:high])
    maxima[index, block] = best
    if scales[index] > 0 and np.isfinite(best):
        sums[index, block] = _block_sum(logits[row, low:high], best, scales[index])


@njit(cache=True, parallel=True)
def _scan(logits, bits, rows, scales, maxima, sums):  # type: ignore[no-untyped-def]
    for job in prange(maxima.size):
        _scan_one(job, logits, bits, rows, scales, maxima, sums)


@njit(cache=True)
def _scan_alone(logits, bits, rows, scales, maxima, sums):  # type: ignore[no-untyped-def]
    for job in range(maxima.size):
        _scan_one(job, logits, bits, rows, scales, maxima, sums)
