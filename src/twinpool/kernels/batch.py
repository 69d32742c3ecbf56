"""The ragged batch: index arrays that say which tokens, rows and slots a forward pass touches.

Knows nothing of requests or schedulers. Tokens of all lanes are packed one after the other, with no
padding; every kernel reads the same arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """Index arrays of one forward pass over `B` lanes and `T` packed tokens; all int32, C order.

    Attributes:
        cu_tokens: `[B + 1]` offsets of the lanes in the packed tokens; `cu_tokens[B] == T`.
        starts: `[B]` tokens of each lane that are in memory already; the packed token `t` of lane
            `i` stands at position `starts[i] + t - cu_tokens[i]`.
        positions: `[T]` that position of every packed token.
        slots: `[B]` working state slot of each lane, read and written in place.
        cu_rows: `[B + 1]` offsets of the lanes in `rows`; lane `i` has `starts[i]` + its tokens.
        rows: KV row of every position of every lane, lane after lane.
        new_rows: `[T]` KV row of every packed token: where its key and value are written.
        cu_events: `[B + 1]` offsets of the lanes in the two arrays below.
        event_tokens: `[E]` packed token after which a checkpoint is copied, rising within a lane.
        event_slots: `[E]` slot that receives the copy; never a working slot of the batch.
    """

    cu_tokens: IntArray
    starts: IntArray
    positions: IntArray
    slots: IntArray
    cu_rows: IntArray
    rows: IntArray
    new_rows: IntArray
    cu_events: IntArray
    event_tokens: IntArray
    event_slots: IntArray

    @property
    def num_lanes(self) -> int:
        """Lanes in the batch, `B`."""
        return len(self.starts)

    @property
    def num_tokens(self) -> int:
        """Packed tokens, `T`."""
        return len(self.positions)
