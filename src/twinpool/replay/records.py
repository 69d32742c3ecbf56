"""What a replay remembers of each request that it served.

Plain frozen records; knows neither the scheduler nor what is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.traces.schema import BlockArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One request from its arrival to its end, in virtual time.

    Attributes:
        index: Number of the request, from 0 in the order of arrival.
        session: Name of its session.
        turn: Which turn of the session it is, from 0.
        namespace: Prefixes are shared within a namespace only.
        path: Units of prompt and answer as far as their KV was written, int32; the prompt first.
        prompt_units: How many of `path` are the prompt.
        unit_tokens: Tokens of one unit.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
        cached_tokens: Prompt tokens that came from the prefix cache at first admission.
        missed_tokens: Prompt tokens whose KV was there and whose state was missing.
        arrival_s: When it joined the queue.
        admitted_s: When it was first admitted.
        first_token_s: When its first token was out.
        finished_s: When its last token was out.
        retractions: How often it went back to the queue.
    """

    index: int
    session: str
    turn: int
    namespace: str
    path: BlockArray
    prompt_units: int
    unit_tokens: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    missed_tokens: int
    arrival_s: float
    admitted_s: float
    first_token_s: float
    finished_s: float
    retractions: int = 0
