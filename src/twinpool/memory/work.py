"""Prefill work: what a prefix costs to compute and to keep, in the model's own numbers.

Operations stand for seconds: a machine computes prompts at a rate that is its own, and where costs
are only compared the rate does not matter. Knows no tree, pool or clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillWork:
    """What a prefix costs to compute and to keep, in rows of the KV pool.

    Attributes:
        flops_per_row: Operations of one row, whatever stands before it.
        flops_per_pair: Operations of one row and one row before it.
        row_bytes: Bytes of one row.
        slot_bytes: Bytes of one checkpoint.
    """

    flops_per_row: int
    flops_per_pair: int
    row_bytes: int
    slot_bytes: int

    def saved(self, start: int, end: int) -> int:
        """Return the operations that a prefix of `end` rows saves over one of `start` rows."""
        pairs = (end * (end + 1) - start * (start + 1)) // 2
        return (end - start) * self.flops_per_row + pairs * self.flops_per_pair


# Rows and checkpoints of like weight: for trees that belong to no model.
NEUTRAL = PrefillWork(flops_per_row=1, flops_per_pair=0, row_bytes=1, slot_bytes=1)
