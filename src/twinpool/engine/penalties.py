"""What a request asks to be done to its logits before a token is chosen, and the counts for it.

Knows no batch: one row, one request at a time. Order: repetition, frequency and presence penalties
on the model's logits, then the logit bias, then the mask that `min_tokens` asks for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twinpool.engine.vocab_scan import FloatArray
from twinpool.scheduling.plan import Lane, TokenArray
from twinpool.scheduling.sampling import SamplingParams

Ids = npt.NDArray[np.int64]
_FIRST_CAPACITY = 64


class TokenCounts:
    """The distinct tokens of one request's prompt and output, counted as they come.

    Args:
        prompt: The prompt's tokens; read once.

    Attributes:
        num_prompt: Tokens in the prompt.
        num_output: Output tokens counted so far.
    """

    def __init__(self, prompt: TokenArray) -> None:
        self.num_prompt = len(prompt)
        self.num_output = 0
        self._prompt_ids: Ids = np.unique(prompt).astype(np.int64)
        self._places: dict[int, int] = {}
        self._ids: Ids = np.empty(_FIRST_CAPACITY, np.int64)
        self._counts: FloatArray = np.empty(_FIRST_CAPACITY, np.float32)

    @property
    def output_ids(self) -> Ids:
        """Distinct output tokens; a view."""
        return self._ids[: len(self._places)]

    @property
    def output_counts(self) -> FloatArray:
        """How often each of `output_ids` came; a view."""
        return self._counts[: len(self._places)]

    @property
    def seen_ids(self) -> Ids:
        """Tokens of prompt and output together; one that is in both comes twice."""
        return np.concatenate((self._prompt_ids, self.output_ids))

    def count_up_to(self, tokens: TokenArray) -> None:
        """Count the output tokens that have not been counted yet.

        Args:
            tokens: The whole sequence, prompt then output.

        Cost:
            Constant per new token.
        """
        for token in tokens[self.num_prompt + self.num_output :].tolist():
            place = self._places.get(token)
            if place is None:
                place = self._add(token)
            self._counts[place] += 1.0
            self.num_output += 1

    def _add(self, token: int) -> int:
        place = len(self._places)
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.empty_like(self._counts)))
        self._places[token] = place
        self._ids[place], self._counts[place] = token, 0.0
        return place


class LogitAdjuster:
    """Changes one row as its request asks, and keeps the counts that this needs.

    Args:
        eos_token_ids: The model's end tokens.
    """

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos = eos_token_ids
        self._counts: dict[int, TokenCounts] = {}

    def end_tokens(self, params: SamplingParams) -> tuple[int, ...]:
        """Return the tokens that end a request with these parameters."""
        return params.stop_token_ids if params.ignore_eos else self._eos + params.stop_token_ids

    def has_work(self, lane: Lane, params: SamplingParams) -> bool:
        """Return True when the lane's logits are to be changed."""
        return (
            bool(params.logit_bias) or lane.output_index < params.min_tokens or _has_penalty(params)
        )

    def adjust(self, logits: FloatArray, lane: Lane, params: SamplingParams) -> str:
        """Change a row as the lane asks.

        Args:
            logits: float32 `[V]`, changed in place.
            lane: The request's share of the step.
            params: Its sampling parameters.

        Returns:
            Empty, or why the lane must fail.
        """
        width = len(logits)
        strange = [token for token in params.logit_bias if not 0 <= token < width]
        if strange:
            return f"logit_bias names token {strange[0]}; the vocabulary has {width}"
        if _has_penalty(params):
            _penalise(logits, self._count(lane), params)
        if params.logit_bias:
            ids = np.fromiter(params.logit_bias, np.int64, len(params.logit_bias))
            bias = np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias))
            logits[ids] += bias
        if lane.output_index < params.min_tokens:
            ends = [token for token in self.end_tokens(params) if 0 <= token < width]
            logits[ends] = -np.inf
        return ""

    def forget(self, request_id: int) -> None:
        """Drop the counts of a request; unknown ids are ignored."""
        self._counts.pop(request_id, None)

    def _count(self, lane: Lane) -> TokenCounts:
        counts = self._counts.get(lane.request_id)
        # After a retraction a request comes back with the tokens it had; anything else is another
        # request under the same number.
        if (
            counts is None
            or counts.num_prompt != lane.num_prompt
            or counts.num_output > lane.output_index
        ):
            counts = self._counts[lane.request_id] = TokenCounts(lane.tokens[: lane.num_prompt])
        counts.count_up_to(lane.tokens[: lane.end])
        return counts


def _has_penalty(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def _penalise(logits: FloatArray, counts: TokenCounts, params: SamplingParams) -> None:
    if params.repetition_penalty != 1.0:
        seen = counts.seen_ids
        values = logits[seen]
        penalty = np.float32(params.repetition_penalty)
        # A token that comes twice is given the same value twice.
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        cost = counts.output_counts * np.float32(params.frequency_penalty)
        logits[counts.output_ids] -= cost + np.float32(params.presence_penalty)
