"""Log probabilities under the model's raw distribution: before penalties, bias and temperature.

Knows no request; it is asked for a token and how many of the best are to come with it.
"""

from __future__ import annotations

import math

import numpy as np

from twinpool.engine.candidates import RowScan, best_tokens
from twinpool.scheduling.plan import TokenLogprobs


def token_logprobs(row: RowScan, token: int, num_top: int) -> TokenLogprobs:
    """Return the logprob of one token and of the most likely ones.

    Args:
        row: Raw logits, scanned at temperature 1.
        token: The token that stands there, in the vocabulary.
        num_top: How many of the best tokens are wanted, 0 or more.

    Cost:
        Constant in the vocabulary but for the block maxima.
    """
    log_total = row.best + math.log(row.total(1.0))
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        ids, logits = best_tokens(row, num_top)
        # Stable, and ids come rising: equals stay in the order of their ids.
        order = np.argsort(-logits, kind="stable")
        found = logits[order].astype(np.float64) - log_total
        top = tuple(zip(ids[order].tolist(), found.tolist(), strict=True))
    return TokenLogprobs(token, float(row.logits[token]) - log_total, top)
