"""Runs of a loaded model without a scheduler: lanes written by hand, pools sized to fit.

Shared by the tests that compare models with transformers and with themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from twinpool.engine.inputs import build_inputs
from twinpool.engine.pools import Pools
from twinpool.models.decoder import Decoder
from twinpool.scheduling.plan import CheckpointWrite, CopyState, Lane, ZeroState
from twinpool.spec.geometry import geometry_of


@dataclass
class Run:
    """One hand-run request.

    Attributes:
        tokens: int32, all of them.
        rows: int32, a KV row for each.
        slot: Its working slot.
        done: Tokens that are in memory.
        checkpoints: Copies to take, by rising depth.
    """

    tokens: np.ndarray
    rows: np.ndarray
    slot: int
    done: int = 0
    checkpoints: tuple[CheckpointWrite, ...] = field(default=())

    def lane(self, count: int) -> Lane:
        """Return a lane over the next `count` tokens and count them as done."""
        start, self.done = self.done, self.done + count
        inside = tuple(w for w in self.checkpoints if start < w.depth <= self.done)
        return Lane(
            request_id=self.slot,
            start=start,
            end=self.done,
            tokens=self.tokens,
            num_prompt=len(self.tokens),
            rows=self.rows[: self.done],
            slot=self.slot,
            checkpoints=inside,
            sampling=None,
            output_index=0,
        )


class Bench:
    """A model with poisoned pools, stepped by hand.

    Args:
        model: The model.
        num_rows: Rows of the KV pool.
        num_slots: Slots of the state pool.
        seed: Rows are handed out in an order drawn from it; None hands them out in rising order.
    """

    def __init__(
        self, model: Decoder, *, num_rows: int = 2048, num_slots: int = 24, seed: int | None = 0
    ) -> None:
        self.model = model
        geometry = geometry_of(model.spec)
        self.pools = Pools(
            model.spec, geometry, num_rows=num_rows, num_slots=num_slots, poison=True
        )
        rows = np.arange(1, num_rows + 1, dtype=np.int32)
        slots = np.arange(1, num_slots + 1, dtype=np.int32)
        if seed is not None:
            rng = np.random.default_rng(seed)
            rng.shuffle(rows)
            rng.shuffle(slots)
        self._rows, self._slots = list(rows), list(slots)

    def slot(self) -> int:
        """Take a free slot."""
        return int(self._slots.pop())

    def start(self, tokens: np.ndarray, *, depths: Sequence[int] = ()) -> Run:
        """Begin a request from nothing; it leaves checkpoints at `depths`."""
        rows = np.array([self._rows.pop() for _ in tokens], np.int32)
        slot = self.slot()
        self.pools.apply([ZeroState(slot)])
        writes = tuple(CheckpointWrite(depth, self.slot()) for depth in depths)
        return Run(np.asarray(tokens, np.int32), rows, slot, 0, writes)

    def resume(self, other: Run, write: CheckpointWrite, tokens: np.ndarray) -> Run:
        """Begin a request from a checkpoint of another, sharing its rows up to there."""
        rest = [self._rows.pop() for _ in range(len(tokens) - write.depth)]
        rows = np.concatenate([other.rows[: write.depth], np.array(rest, np.int32)])
        slot = self.slot()
        self.pools.apply([CopyState(write.slot, slot)])
        return Run(np.asarray(tokens, np.int32), rows.astype(np.int32), slot, write.depth)

    def step(self, *spans: tuple[Run, int]) -> list[torch.Tensor]:
        """Run the next tokens of some requests in one batch.

        Returns:
            Logits `[count, vocab]` of each, in order.
        """
        inputs = build_inputs([request.lane(count) for request, count in spans])
        every = np.arange(len(inputs.token_ids), dtype=np.int32)
        logits = self.model.forward(inputs.token_ids, inputs.batch, self.pools.views, every)
        return list(torch.split(logits, [count for _, count in spans]))

    def alone(self, tokens: np.ndarray, *chunks: int) -> torch.Tensor:
        """Run one request by itself in chunks (the rest in one); returns logits `[T, vocab]`."""
        request = self.start(tokens)
        parts = [self.step((request, count))[0] for count in chunks]
        if request.done < len(tokens):
            parts += self.step((request, len(tokens) - request.done))
        return torch.cat(parts)

    def step_wanting(self, span: tuple[Run, int], *, wanted: Sequence[int]) -> torch.Tensor:
        """Run the next tokens of one request; returns logits of some packed tokens only."""
        inputs = build_inputs([span[0].lane(span[1])])
        rows = np.array(wanted, np.int32)
        return self.model.forward(inputs.token_ids, inputs.batch, self.pools.views, rows)
