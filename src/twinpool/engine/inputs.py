"""From the lanes of a step plan to the index arrays of one forward pass.

Knows no tensor and no pool; every array is built once per step and shared by all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinpool.kernels.batch import IntArray, RaggedBatch
from twinpool.scheduling.plan import Lane


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Packed tokens of one lane whose logits give logprobs of prompt tokens.

    Attributes:
        lane: Index of the lane in the plan.
        first: Row of the span's first logits among `StepInputs.wanted`.
        targets: int32 `[n]`, the prompt tokens that those logits predict.
    """

    lane: int
    first: int
    targets: IntArray


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a forward pass reads.

    Attributes:
        token_ids: int32 `[T]`.
        batch: Index arrays.
        wanted: int32, packed tokens whose hidden states are wanted: first the last token of every
            lane, sampling or not (a fault of a lane shows there), then the spans of `prompts`.
        prompts: One per lane that wants logprobs of its prompt and has some in this step.
    """

    token_ids: IntArray
    batch: RaggedBatch
    wanted: IntArray
    prompts: tuple[PromptSpan, ...]


def build_inputs(lanes: Sequence[Lane]) -> StepInputs:
    """Pack the lanes of a plan.

    Args:
        lanes: At least one.

    Returns:
        New arrays, the caller's own; nothing of the lanes is kept.

    Cost:
        A few array operations over all lanes, and one copy of every lane's row indices.
    """
    num_lanes = len(lanes)
    starts = np.fromiter((lane.start for lane in lanes), np.int32, num_lanes)
    ends = np.fromiter((lane.end for lane in lanes), np.int32, num_lanes)
    counts = ends - starts
    cu_tokens = _offsets(counts)
    cu_rows = _offsets(ends)
    rows = np.concatenate([lane.rows for lane in lanes]).astype(np.int32, copy=False)
    tokens = np.concatenate([lane.tokens[lane.start : lane.end] for lane in lanes])
    num_tokens = int(cu_tokens[-1])
    positions = np.arange(num_tokens, dtype=np.int32)
    if num_tokens == num_lanes:
        # Decode: one token per lane, so packed token and lane are the same number.
        positions = starts.copy()
        new_rows = rows[cu_rows[1:] - 1]
    else:
        positions += np.repeat(starts - cu_tokens[:-1], counts)
        new_rows = rows[positions + np.repeat(cu_rows[:-1], counts)]
    cu_events, event_tokens, event_slots = _events(lanes, cu_tokens)
    batch = RaggedBatch(
        cu_tokens=cu_tokens,
        starts=starts,
        positions=positions,
        slots=np.fromiter((lane.slot for lane in lanes), np.int32, num_lanes),
        cu_rows=cu_rows,
        rows=rows,
        new_rows=new_rows,
        cu_events=cu_events,
        event_tokens=event_tokens,
        event_slots=event_slots,
    )
    wanted, prompts = _wanted(lanes, cu_tokens)
    return StepInputs(tokens.astype(np.int32, copy=False), batch, wanted, prompts)


def _offsets(counts: IntArray) -> IntArray:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _events(lanes: Sequence[Lane], cu_tokens: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the checkpoint copies: offsets of the lanes, packed tokens, slots."""
    counts = np.fromiter((len(lane.checkpoints) for lane in lanes), np.int32, len(lanes))
    cu_events = _offsets(counts)
    if cu_events[-1] == 0:
        none = np.zeros(0, np.int32)
        return cu_events, none, none
    # The state after `depth` tokens is there once the token at position depth - 1 has passed.
    tokens = [
        int(first) + write.depth - lane.start - 1
        for first, lane in zip(cu_tokens, lanes, strict=False)
        for write in lane.checkpoints
    ]
    slots = [write.slot for lane in lanes for write in lane.checkpoints]
    return cu_events, np.array(tokens, np.int32), np.array(slots, np.int32)


def _wanted(lanes: Sequence[Lane], cu_tokens: IntArray) -> tuple[IntArray, tuple[PromptSpan, ...]]:
    """Return the packed tokens whose hidden states are wanted, and the prompt spans in them."""
    parts = [cu_tokens[1:] - 1]
    first = len(lanes)
    prompts = []
    for index, lane in enumerate(lanes):
        # The token at position p predicts the one at p + 1, and only prompt tokens are wanted.
        count = min(lane.end, lane.num_prompt - 1) - lane.start
        if lane.prompt_logprobs is None or count <= 0:
            continue
        parts.append(np.arange(count, dtype=np.int32) + cu_tokens[index])
        targets = lane.tokens[lane.start + 1 : lane.start + 1 + count]
        prompts.append(PromptSpan(index, first, targets.astype(np.int32)))
        first += count
    return np.concatenate(parts).astype(np.int32, copy=False), tuple(prompts)
