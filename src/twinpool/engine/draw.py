"""One uniform number per token, from nothing but a seed and a position.

Knows no generator state: the number of a request's token i is the same after a restart, a
retraction or with other batch mates, because nothing is drawn in sequence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) with 53 random bits.

    Args:
        seed: Any integer from -2**63 to 2**64 - 1.
        position: Index of the token among the output tokens, from 0.

    Source:
        SplitMix64 (Steele, Lea, Flood 2014), whose n-th output is a hash of its start plus n steps;
        the start is hashed too, so that neighbouring seeds give unrelated streams.
    """
    start = _mixed((seed & _MASK) ^ _STEP)
    return (_mixed((start + (position + 1) * _STEP) & _MASK) >> 11) * 2.0**-53


def pick(weights: npt.NDArray[np.float64], share: float) -> int:
    """Return the index at which the running sum of weights passes a share of their total.

    Args:
        weights: `[k]`, 0 or more, at least one above 0; their order is the order of the choice.
        share: In [0, 1).
    """
    sums = np.cumsum(weights)
    index = int(np.searchsorted(sums, share * sums[-1], side="right"))
    # Rounding may lift the target to the total itself; the last token with a weight is meant.
    return index if index < len(sums) else int(np.searchsorted(sums, sums[-1], side="left"))


def _mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
