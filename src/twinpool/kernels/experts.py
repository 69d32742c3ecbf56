"""Routed SwiGLU experts on packed weights: rows are sorted by expert, and no expert is padded.

A row's bits depend neither on which rows share its expert nor on their number; its outputs are
added in the order of its own choices. Knows no router.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange

from twinpool.kernels import threads
from twinpool.kernels.linear import PANELS, ROWS, check_matrix, linear_block, pack_panels
from twinpool.kernels.tiles import (
    MAX_ROWS,
    add_scaled_row,
    copy_row,
    fetch_add,
    read_f32,
    read_i32,
    scale_row,
    silu_mul_row,
)
from twinpool.kernels.vector import PANEL

# Places in the numbers of a call: addresses of the packed weights, widths, bytes of a weight.
GATE, UP, DOWN, K, F, SIZE, PAIRS, CHOICES = range(8)


@threads.part
def sort_by_expert(ids, pairs, experts, place, blocks):  # type: ignore[no-untyped-def]
    """Place of every (token, choice) pair in an order by expert, and blocks of up to `ROWS` pairs.

    Fills `place` `[pairs]` and `blocks` `[n, 3]`: expert, first place, pairs. Returns n.
    """
    starts = np.zeros(experts + 1, np.int64)
    for pair in range(pairs):
        starts[read_i32(ids + pair * 4) + 1] += 1
    found = 0
    for expert in range(experts):
        size = starts[expert + 1]
        starts[expert + 1] += starts[expert]
        for first in range(0, size, ROWS):
            blocks[found, 0] = expert
            blocks[found, 1] = starts[expert] + first
            blocks[found, 2] = min(ROWS, size - first)
            found += 1
    for pair in range(pairs):
        expert = read_i32(ids + pair * 4)
        place[pair] = starts[expert]
        starts[expert] += 1
    return found


@threads.part
def up_task(p, x, out, block, first, scratch):  # type: ignore[no-untyped-def]
    """Some panels of `silu(gate(x)) * up(x)` of a block of sorted rows, into the gate's place."""
    expert, row, rows = block[0], block[1], block[2]
    panels = (p[F] + PANEL - 1) // PANEL
    last, weight = min(panels, first + PANELS), expert * panels * PANEL * p[K] * p[SIZE]
    bf16, source = p[SIZE] == 2, x + row * p[K] * 4
    for which in range(2):
        to = out + (which * p[PAIRS] + row) * p[F] * 4
        at = p[GATE + which] + weight
        linear_block(rows, source, at, 0, to, p[F], p[K], first, last, bf16, scratch)
    columns = min(p[F], last * PANEL) - first * PANEL
    for r in range(row, row + rows):
        gate = out + (r * p[F] + first * PANEL) * 4
        silu_mul_row(gate, gate + p[PAIRS] * p[F] * 4, gate, columns)


@threads.part
def down_task(p, hidden, out, block, first, scratch):  # type: ignore[no-untyped-def]
    """Some panels of the down projection of a block of sorted rows."""
    expert, row, rows = block[0], block[1], block[2]
    panels = (p[K] + PANEL - 1) // PANEL
    last, weight = min(panels, first + PANELS), expert * panels * PANEL * p[F] * p[SIZE]
    source, to, bf16 = hidden + row * p[F] * 4, out + row * p[K] * 4, p[SIZE] == 2
    linear_block(rows, source, p[DOWN] + weight, 0, to, p[K], p[F], first, last, bf16, scratch)


@threads.part
def combine(p, parts, weights, place, token, out):  # type: ignore[no-untyped-def]
    """One token's output: its parts times their weights, added in the order of its choices."""
    for choice in range(p[CHOICES]):
        pair = token * p[CHOICES] + choice
        weight, part = read_f32(weights + pair * 4), parts + place[pair] * p[K] * 4
        if choice == 0:
            scale_row(part, weight, out, p[K])
        else:
            add_scaled_row(out, part, weight, out, p[K])


@threads.kernel
def _experts(x, ids, weights, y, tokens, experts, p, workers):  # type: ignore[no-untyped-def]
    pairs, room = p[PAIRS], p[PAIRS] * p[K]
    place = np.empty(pairs, np.int64)
    blocks = np.empty((min(pairs, experts + pairs // ROWS), 3), np.int64)
    found = sort_by_expert(ids, pairs, experts, place, blocks)
    counters = np.zeros(4, np.int64)
    sorted_rows, parts = np.empty(room, np.float32), np.empty(room, np.float32)
    hidden = np.empty(2 * pairs * p[F], np.float32)
    for _ in prange(workers):
        pair = fetch_add(counters.ctypes.data, 1)
        while pair < pairs:
            to = sorted_rows.ctypes.data + place[pair] * p[K] * 4
            copy_row(x + pair // p[CHOICES] * p[K] * 4, to, p[K])
            pair = fetch_add(counters.ctypes.data, 1)
    wide = ((p[F] + PANEL - 1) // PANEL + PANELS - 1) // PANELS
    for _ in prange(workers):
        scratch = np.empty(MAX_ROWS * PANEL, np.float32)
        task = fetch_add(counters.ctypes.data + 8, 1)
        while task < found * wide:
            block, first, at = blocks[task // wide], task % wide * PANELS, scratch.ctypes.data
            up_task(p, sorted_rows.ctypes.data, hidden.ctypes.data, block, first, at)
            task = fetch_add(counters.ctypes.data + 8, 1)
    narrow = ((p[K] + PANEL - 1) // PANEL + PANELS - 1) // PANELS
    for _ in prange(workers):
        scratch = np.empty(MAX_ROWS * PANEL, np.float32)
        task = fetch_add(counters.ctypes.data + 16, 1)
        while task < found * narrow:
            block, first, at = blocks[task // narrow], task % narrow * PANELS, scratch.ctypes.data
            down_task(p, hidden.ctypes.data, parts.ctypes.data, block, first, at)
            task = fetch_add(counters.ctypes.data + 16, 1)
    for _ in prange(workers):
        token = fetch_add(counters.ctypes.data + 24, 1)
        while token < tokens:
            combine(p, parts.ctypes.data, weights, place, token, y + token * p[K] * 4)
            token = fetch_add(counters.ctypes.data + 24, 1)


class PanelExperts:
    """`sum over choices of weight * down(silu(gate(x)) * up(x))` on packed weights.

    Args:
        gate_up: `[E, 2F, K]` float32 or bfloat16, gate rows then up rows; copied.
        down: `[E, K, F]` of the same dtype; copied.
    """

    implementation = "panels"

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        assert gate_up.dtype == down.dtype, f"{gate_up.dtype} and {down.dtype} in one expert"
        self.num_experts, double, self._k = gate_up.shape
        inner = double // 2
        assert down.shape == (self.num_experts, self._k, inner), f"down is {tuple(down.shape)}"
        gate, up = gate_up[:, :inner], gate_up[:, inner:]
        self._packed = [pack_panels(weight) for weight in (gate, up, down)]
        addresses = [weight.data_ptr() for weight in self._packed]
        self._numbers = (*addresses, self._k, inner, down.element_size())
        self.weight_bytes = sum(w.numel() * w.element_size() for w in self._packed)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As `reference.ReferenceExperts`."""
        tokens, choices = ids.shape
        check_matrix(x, self._k)
        check_matrix(weights, choices)
        assert ids.dtype == torch.int32, f"int32 ids expected, not {ids.dtype}"
        assert ids.is_contiguous(), "contiguous ids expected"
        assert len(x) == len(weights) == tokens, "one row of choices per row"
        y = torch.empty(tokens, self._k)
        numbers = np.array((*self._numbers, tokens * choices, choices), np.int64)
        _experts(
            x.data_ptr(),
            ids.data_ptr(),
            weights.data_ptr(),
            y.data_ptr(),
            tokens,
            self.num_experts,
            numbers,
            threads.workers(3 * tokens * choices * self._numbers[3] * self._numbers[4]),
        )
        return y
