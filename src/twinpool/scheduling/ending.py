"""Ending: whether the token just sampled is the last one, and why.

Knows a request's limits and stop tokens; stop strings are seen by the executor, which has the text.
"""

from __future__ import annotations

from twinpool.scheduling.events import FinishReason
from twinpool.scheduling.request import Request


def finish_of(
    request: Request, token: int, stop_string: str | None
) -> tuple[FinishReason | None, int | None]:
    """Say whether a request ends with its newest token.

    Args:
        request: The request, the token appended already.
        token: The newest token.
        stop_string: The stop string that it completes, or None.

    Returns:
        The reason or None, and the stop token that ended it or None.
    """
    sampling = request.arrival.sampling
    if request.num_output >= sampling.min_tokens:
        if token in sampling.stop_token_ids:
            return FinishReason.STOP, token
        if not sampling.ignore_eos and token in request.arrival.eos_token_ids:
            return FinishReason.STOP, token
        if stop_string is not None:
            return FinishReason.STOP, None
    if request.remaining_output <= 0:
        return FinishReason.LENGTH, None
    return None, None
