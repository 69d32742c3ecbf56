"""Served requests for tests of the bound: made by hand, or drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from twinpool.replay.records import ServedRequest


def served(
    path: Sequence[int],
    times: tuple[float, float, float],
    *,
    prompt: int | None = None,
    unit_tokens: int = 1,
    input_tokens: int | None = None,
    cached: int = 0,
    **fields,
) -> ServedRequest:
    """Make a record from its path and its times of admission, first token and end.

    `prompt` is how many of the path's units are the prompt, all of them if not given.
    """
    prompt = len(path) if prompt is None else prompt
    admitted, first_token, finished = times
    defaults = {"index": 0, "session": "s", "turn": 0, "namespace": "", "missed_tokens": 0}
    return ServedRequest(
        **(defaults | fields),
        path=np.array(path, dtype=np.int32),
        prompt_units=prompt,
        unit_tokens=unit_tokens,
        input_tokens=prompt * unit_tokens if input_tokens is None else input_tokens,
        output_tokens=1 + (len(path) - prompt) * unit_tokens,
        cached_tokens=cached,
        arrival_s=admitted,
        admitted_s=admitted,
        first_token_s=first_token,
        finished_s=finished,
    )


def most_held(requests: Sequence[ServedRequest]) -> tuple[int, int]:
    """Return the most units, and the most slots, that running requests alone hold at a moment.

    Counted the slow way: prompts from first token to end, working states from admission on.
    """
    steady = [request for request in requests if not request.retractions]
    units = slots = 0
    for moment in {time for r in steady for time in (r.admitted_s, r.first_token_s)}:
        running = [r for r in steady if r.admitted_s <= moment < r.finished_s]
        held = {
            (r.namespace, tuple(r.path[:depth].tolist()))
            for r in running
            if r.first_token_s <= moment
            for depth in range(1, r.prompt_units + 1)
        }
        units, slots = max(units, len(held)), max(slots, len(running))
    return units, slots


def shared_units(prompt: np.ndarray, path: np.ndarray) -> int:
    """Count the units that a prompt and a path have in common, from the start."""
    length = min(len(prompt), len(path))
    return next((at for at in range(length) if prompt[at] != path[at]), length)


def infinite_tokens(requests: Sequence[ServedRequest]) -> int:
    """Return the prompt tokens that a cache without end would reuse, the slow way."""
    total = 0
    for request in requests:
        prompt = request.path[: request.prompt_units]
        depths = [0]
        for other in requests:
            if other.namespace != request.namespace or other.admitted_s >= request.admitted_s:
                continue
            is_answering = other.first_token_s < request.admitted_s
            known = other.path if is_answering else other.path[: other.prompt_units]
            depths.append(shared_units(prompt, known))
        total += min(max(depths) * request.unit_tokens, request.input_tokens)
    return total


@st.composite
def traces(draw: st.DrawFn, *, max_requests: int = 6, max_units: int = 5) -> list[ServedRequest]:
    """Draw a few requests over two keys, so that they share a lot, at times that overlap."""
    requests: list[ServedRequest] = []
    for index in range(draw(st.integers(2, max_requests))):
        keys = draw(st.lists(st.integers(0, 1), min_size=1, max_size=max_units))
        if requests and draw(st.booleans()):
            # The next turn of an earlier one, or a repeat.
            keys = (draw(st.sampled_from(requests)).path.tolist() + keys)[:max_units]
        prompt = draw(st.integers(1, len(keys)))
        admitted = draw(st.integers(0, 16))
        first_token = admitted + draw(st.integers(1, 2))
        finished = first_token + draw(st.integers(int(prompt < len(keys)), 2))
        requests.append(
            served(
                keys,
                (admitted, first_token, finished),
                prompt=prompt,
                index=index,
                retractions=draw(st.sampled_from([0, 0, 0, 1])),
            )
        )
    return requests
