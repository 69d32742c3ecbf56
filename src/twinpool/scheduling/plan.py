"""The step plan and its result: the frozen records that pass between scheduler and executor.

A plan says everything that one forward step needs; it knows nothing of tensors, kernels or time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twinpool.scheduling.sampling import SamplingParams

TokenArray = npt.NDArray[np.int32]
RowArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ZeroState:
    """Zero one state slot before the step: a request starts from nothing."""

    slot: int


@dataclass(frozen=True, slots=True)
class CopyState:
    """Copy one state slot onto another before the step: a request starts from a checkpoint."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class MoveRows:
    """Copy rows onto others before the step: compaction.

    Attributes:
        sources: Rows whose bytes are read; their content is undefined afterwards.
        targets: The row that each is copied to; none of them is a source.
    """

    sources: RowArray
    targets: RowArray


MemoryAction = ZeroState | CopyState | MoveRows


@dataclass(frozen=True, slots=True)
class CheckpointWrite:
    """Copy the state of a lane, as it is after `depth` tokens, into `slot`.

    Attributes:
        depth: Tokens from the start of the sequence, `start < depth <= end` of the lane.
        slot: The slot that receives the copy; not a working slot of this plan.
    """

    depth: int
    slot: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One request's share of a step.

    Attributes:
        request_id: The scheduler's number of the request.
        start: Tokens whose rows and state are in memory before the step.
        end: Tokens whose rows and state are there after it; `end > start`.
        tokens: All token ids known of the sequence, int32, prompt then output; a view that the
            executor reads and never keeps. `tokens[start:end]` go through the model.
        num_prompt: How many of `tokens` are the prompt.
        rows: KV row of each token, int32 `[end]`; a view that the executor reads and never keeps.
        slot: The working state slot, read and written in place; -1 for a model without one.
        checkpoints: Copies to take inside the span, by rising depth.
        sampling: How to choose the next token; None when the span ends inside the prompt.
        output_index: Index of the token to be sampled among the output tokens, from 0.
        prompt_logprobs: How many of the most likely tokens come with the logprobs of
            `tokens[start + 1 : end + 1]` that are prompt; None when those are not wanted.
    """

    request_id: int
    start: int
    end: int
    tokens: TokenArray
    num_prompt: int
    rows: RowArray
    slot: int
    checkpoints: tuple[CheckpointWrite, ...]
    sampling: SamplingParams | None
    output_index: int
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one forward step does.

    Attributes:
        step: Number of the step, from 0.
        actions: Memory actions, to be carried out in order before the forward pass.
        lanes: The requests of the batch, decodes first.
    """

    step: int
    actions: tuple[MemoryAction, ...]
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs at one position.

    Attributes:
        token: The token that stands there.
        logprob: Its natural log probability under the model's raw distribution.
        top: `(token, logprob)` of the most likely tokens, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LaneResult:
    """What one lane gave.

    Attributes:
        request_id: The lane's request.
        token: The sampled token; None for a lane that did not sample.
        logprobs: Of the sampled token, when asked for.
        prompt_logprobs: Of `tokens[start + 1 : end + 1]` that are prompt, when asked for.
        stop_string: The stop string that the sampled token completes, if it completes one.
        error: Empty, or why this lane alone failed (for example logits that are not numbers);
            the request is then ended with it and its neighbours go on.
    """

    request_id: int
    token: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    stop_string: str | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, lane by lane in the plan's order.

    Attributes:
        step: The plan's number.
        lanes: One result per lane.
        duration_s: How long it took, in seconds, measured or predicted.
    """

    step: int
    lanes: tuple[LaneResult, ...]
    duration_s: float
