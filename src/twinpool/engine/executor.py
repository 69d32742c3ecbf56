"""The torch executor: memory actions, one forward pass, sampling; a step plan in, a result out.

Knows no queue and no cache: it touches the rows and slots that the plan names, and decides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from twinpool.clock import Clock
from twinpool.engine.inputs import StepInputs, build_inputs
from twinpool.engine.pools import Pools
from twinpool.kernels.batch import IntArray
from twinpool.models.decoder import Decoder
from twinpool.scheduling.plan import Lane, LaneResult, StepPlan, StepResult, TokenLogprobs

# Prompt logprobs need logits at every position; they are worked out in slices of this size.
PROMPT_LOGITS_BYTES = 64 * 2**20


class Sampler(Protocol):
    """Chooses tokens; keeps what it needs per request until it is told to forget it."""

    def sample(self, logits: torch.Tensor, lanes: Sequence[Lane]) -> list[LaneResult]:
        """Choose one token per lane.

        Args:
            logits: float32 `[n, vocab]`, finite; may be changed in place.
            lanes: `n` lanes that sample.
        """
        ...

    def prompt_logprobs(
        self, logits: torch.Tensor, targets: IntArray, num_top: int
    ) -> tuple[TokenLogprobs, ...]:
        """Return logprobs of given tokens.

        Args:
            logits: float32 `[n, vocab]`.
            targets: int32 `[n]`.
            num_top: How many of the most likely tokens come with each.
        """
        ...

    def forget(self, request_id: int) -> None:
        """Drop what is kept for a request; unknown ids are ignored."""
        ...


class TorchExecutor:
    """Carries out step plans on a loaded model and its pools.

    Args:
        model: The model.
        pools: Its memory.
        sampler: Chooses tokens.
        clock: Tells how long a step took.
    """

    def __init__(self, model: Decoder, pools: Pools, sampler: Sampler, clock: Clock) -> None:
        self._model = model
        self._pools = pools
        self._sampler = sampler
        self._clock = clock

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one plan; see `scheduling.executor.Executor`.

        A lane whose numbers are not finite, or that holds a token outside the vocabulary, gets an
        `error`; its rows and slots, and the checkpoints it wrote, must not be used again.
        """
        began_s = self._clock.now()
        self._pools.apply(plan.actions)
        results = self._run(plan.lanes) if plan.lanes else ()
        return StepResult(plan.step, results, self._clock.now() - began_s)

    def forget(self, request_id: int) -> None:
        """Drop what the sampler keeps for a request that has ended."""
        self._sampler.forget(request_id)

    @torch.inference_mode()
    def _run(self, lanes: tuple[Lane, ...]) -> tuple[LaneResult, ...]:
        """One forward pass and what follows it."""
        inputs = build_inputs(lanes)
        errors = self._hide_bad_tokens(inputs)
        if self._pools.poison:
            self._pools.poison_rows(inputs.batch.new_rows)
            self._pools.poison_slots(inputs.batch.event_slots)
        hidden = self._model.hidden_states(
            inputs.token_ids, inputs.batch, self._pools.views, inputs.wanted
        )
        for lane in np.flatnonzero(~_finite_rows(hidden[: len(lanes)])):
            errors.setdefault(int(lane), "the model's activations are not finite numbers")
        results = self._sample(lanes, hidden, errors)
        for span in inputs.prompts:
            if not results[span.lane].error:
                rows = hidden[span.first : span.first + len(span.targets)]
                logprobs = self._prompt_logprobs(lanes[span.lane], rows, span.targets)
                results[span.lane] = dataclasses.replace(
                    results[span.lane], prompt_logprobs=logprobs
                )
        return tuple(results)

    def _hide_bad_tokens(self, inputs: StepInputs) -> dict[int, str]:
        """Replace tokens outside the vocabulary, which no kernel may see, and name their lanes."""
        ids, vocab_size = inputs.token_ids, self._model.spec.vocab_size
        errors: dict[int, str] = {}
        if ids.min() >= 0 and ids.max() < vocab_size:
            return errors
        bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
        owners = np.searchsorted(inputs.batch.cu_tokens, bad, side="right") - 1
        for token, lane in zip(ids[bad].tolist(), owners.tolist(), strict=True):
            errors.setdefault(lane, f"token {token} is outside the vocabulary of {vocab_size}")
        ids[bad] = 0
        return errors

    def _sample(
        self, lanes: tuple[Lane, ...], hidden: torch.Tensor, errors: dict[int, str]
    ) -> list[LaneResult]:
        """Choose tokens of the lanes that sample; one result per lane, in order."""
        results = [
            LaneResult(lane.request_id, None, error=errors.get(index, ""))
            for index, lane in enumerate(lanes)
        ]
        chosen = [
            i for i, lane in enumerate(lanes) if lane.sampling is not None and i not in errors
        ]
        logits, chosen = self._finite_logits(hidden, chosen, results)
        if chosen:
            sampled = self._sampler.sample(logits, [lanes[index] for index in chosen])
            for index, result in zip(chosen, sampled, strict=True):
                results[index] = result
        return results

    def _finite_logits(
        self, hidden: torch.Tensor, chosen: list[int], results: list[LaneResult]
    ) -> tuple[torch.Tensor, list[int]]:
        """Return logits of the chosen lanes whose logits are finite, and those lanes.

        Changes:
            `results` of the others, which get an error.
        """
        if not chosen:
            return hidden[:0], chosen
        every = chosen == list(range(len(chosen)))
        rows = hidden[: len(chosen)] if every else hidden[torch.tensor(chosen)]
        logits = self._model.logits(rows)
        finite = _finite_rows(logits)
        if finite.all():
            return logits, chosen
        for index in np.flatnonzero(~finite):
            num_bad = int((~np.isfinite(logits[index].numpy())).sum())
            lane = chosen[index]
            error = f"{num_bad} of {logits.shape[1]} logits are not finite numbers"
            results[lane] = dataclasses.replace(results[lane], error=error)
        kept = np.flatnonzero(finite)
        return logits[torch.from_numpy(kept)], [chosen[index] for index in kept]

    def _prompt_logprobs(
        self, lane: Lane, hidden: torch.Tensor, targets: IntArray
    ) -> tuple[TokenLogprobs, ...]:
        """Return logprobs of prompt tokens, slice by slice so that logits stay small."""
        num_top = lane.prompt_logprobs or 0
        step = max(1, PROMPT_LOGITS_BYTES // (4 * self._model.spec.vocab_size))
        found: list[TokenLogprobs] = []
        for first in range(0, len(targets), step):
            logits = self._model.logits(hidden[first : first + step])
            found += self._sampler.prompt_logprobs(logits, targets[first : first + step], num_top)
        return tuple(found)


def _finite_rows(values: torch.Tensor) -> npt.NDArray[np.bool_]:
    """Return which rows of `[n, k]` hold finite numbers only."""
    # NumPy sums as fast, and torch would wake its own threads beside those of the kernels.
    rows = values.numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        finite: npt.NDArray[np.bool_] = np.isfinite(rows.sum(1))
    if finite.all():
        return finite
    # A sum of finite numbers may overflow, so the suspects are looked at one by one.
    exact: npt.NDArray[np.bool_] = np.isfinite(rows).all(1)
    return exact
