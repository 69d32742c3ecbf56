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


@threads.kernel
def _experts(x, ids, weights, y, tokens, choices, experts, k, f, packed, is_bf16, workers):  # type: ignore[no-untyped-def]
    pairs = tokens * choices
    place = np.empty(pairs, np.int64)
    blocks = np.empty((min(pairs, experts + pairs // ROWS), 3), np.int64)
    found = sort_by_expert(ids, pairs, experts, place, blocks)
    counters = np.zeros(4, np.int64)
    room = np.empty((pairs, 2 * k + 2 * f), np.float32)
    wide, narrow = (f + PANEL - 1) // PANEL, (k + PANEL - 1) // PANEL
    size = 2 if is_bf16 else 4
    for _ in prange(workers):
        gathered = room.ctypes.data
        pair = fetch_add(counters.ctypes.data, 1)
        while pair < pairs:
            copy_row(x + pair // choices * k * 4, gathered + place[pair] * k * 4, k)
            pair = fetch_add(counters.ctypes.data, 1)
    across = (wide + PANELS - 1) // PANELS
    for _ in prange(workers):
        gathered = room.ctypes.data
        gate = gathered + pairs * k * 4
        up = gate + pairs * f * 4
        scratch = np.zeros(MAX_ROWS * PANEL, np.float32)
        task = fetch_add(counters.ctypes.data + 8, 1)
        while task < found * across:
            block, first = task // across, task % across * PANELS
            expert, row, rows = blocks[block, 0], blocks[block, 1], blocks[block, 2]
            last = min(wide, first + PANELS)
            bytes_each = wide * PANEL * k * size
            for which in range(2):
                linear_block(
                    rows,
                    gathered + row * k * 4,
                    packed[which] + expert * bytes_each,
                    0,
                    (gate if which == 0 else up) + row * f * 4,
                    f,
                    k,
                    first,
                    last,
                    is_bf16,
                    scratch.ctypes.data,
                )
            columns = min(f, last * PANEL) - first * PANEL
            for r in range(row, row + rows):
                at = (r * f + first * PANEL) * 4
                silu_mul_row(gate + at, up + at, gate + at, columns)
            task = fetch_add(counters.ctypes.data + 8, 1)
    across = (narrow + PANELS - 1) // PANELS
    for _ in prange(workers):
        gate = room.ctypes.data + pairs * k * 4
        result = gate + pairs * 2 * f * 4
        scratch = np.zeros(MAX_ROWS * PANEL, np.float32)
        task = fetch_add(counters.ctypes.data + 16, 1)
        while task < found * across:
            block, first = task // across, task % across * PANELS
            expert, row, rows = blocks[block, 0], blocks[block, 1], blocks[block, 2]
            linear_block(
                rows,
                gate + row * f * 4,
                packed[2] + expert * narrow * PANEL * f * size,
                0,
                result + row * k * 4,
                k,
                f,
                first,
                min(narrow, first + PANELS),
                is_bf16,
                scratch.ctypes.data,
            )
            task = fetch_add(counters.ctypes.data + 16, 1)
    for _ in prange(workers):
        result = room.ctypes.data + pairs * (k + 2 * f) * 4
        token = fetch_add(counters.ctypes.data + 24, 1)
        while token < tokens:
            out = y + token * k * 4
            for choice in range(choices):
                pair = token * choices + choice
                weight, at = read_f32(weights + pair * 4), result + place[pair] * k * 4
                if choice == 0:
                    scale_row(at, weight, out, k)
                else:
                    add_scaled_row(out, at, weight, out, k)
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
        self._f = double // 2
        assert down.shape == (self.num_experts, self._k, self._f), f"down is {tuple(down.shape)}"
        gate, up = gate_up[:, : self._f], gate_up[:, self._f :]
        self._packed = [pack_panels(weight) for weight in (gate, up, down)]
        self._addresses = np.array([w.data_ptr() for w in self._packed], np.int64)
        self._is_bf16 = int(down.dtype == torch.bfloat16)
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
        _experts(
            x.data_ptr(),
            ids.data_ptr(),
            weights.data_ptr(),
            y.data_ptr(),
            tokens,
            choices,
            self.num_experts,
            self._k,
            self._f,
            self._addresses,
            self._is_bf16,
            threads.workers(),
        )
        return y
