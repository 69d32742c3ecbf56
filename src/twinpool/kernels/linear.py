"""Linears on packed weights, in float32 with weights in float32 or bfloat16.

A weight is packed once into panels of `PANEL` output columns, `[N / PANEL, K, PANEL]`, so that it
is read front to back exactly once for few rows. bfloat16 weights stay bfloat16 in memory and are
widened in registers: half the bytes, which decide decode. Knows no layer.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange

from twinpool.kernels import threads
from twinpool.kernels.tiles import (
    MAX_ROWS,
    copy_row,
    fetch_add,
    matrix_rows_bf16,
    matrix_rows_f32,
    matrix_wide_bf16,
    matrix_wide_f32,
)
from twinpool.kernels.vector import LANES, PANEL

ROWS = 96
"""Rows of x that one task takes: its share of x stays in the second-level cache."""

PANELS = 8
"""Panels that one task takes."""


@threads.inlined
def few_rows(m, x, ldx, w, ldw, y, ldy, k, accumulate, is_bf16):  # type: ignore[no-untyped-def]
    """Up to `MAX_ROWS` rows by one panel."""
    if is_bf16:
        matrix_rows_bf16(m, x, ldx, w, ldw, y, ldy, k, accumulate)
    else:
        matrix_rows_f32(m, x, ldx, w, ldw, y, ldy, k, accumulate)


@threads.part
def rows_by_panels(m, x, ldx, w, k, y, ldy, first, last, accumulate, is_bf16):  # type: ignore[no-untyped-def]
    """`y[m, first * PANEL : last * PANEL]` from whole panels; addresses, strides in bytes."""
    panel_bytes = k * PANEL * (2 if is_bf16 else 4)
    p = first
    if m <= 3:
        wide = 4 if m == 1 else 2
        while p + wide <= last:
            if is_bf16:
                matrix_wide_bf16(
                    m,
                    x,
                    ldx,
                    w + p * panel_bytes,
                    panel_bytes,
                    y + p * PANEL * 4,
                    ldy,
                    k,
                    accumulate,
                )
            else:
                matrix_wide_f32(
                    m,
                    x,
                    ldx,
                    w + p * panel_bytes,
                    panel_bytes,
                    y + p * PANEL * 4,
                    ldy,
                    k,
                    accumulate,
                )
            p += wide
    # Rows are dealt evenly, 4 + 4 rather than 6 + 2, because a small tile wastes cycles.
    tiles = (m + MAX_ROWS - 1) // MAX_ROWS
    while p < last:
        at, to = w + p * panel_bytes, y + p * PANEL * 4
        row = 0
        for tile in range(tiles):
            rows = m // tiles + (1 if tile < m % tiles else 0)
            few_rows(rows, x + row * ldx, ldx, at, 0, to + row * ldy, ldy, k, accumulate, is_bf16)
            row += rows
        p += 1


@threads.part
def linear_block(m, x, w, bias, y, n, k, first, last, is_bf16, scratch):  # type: ignore[no-untyped-def]
    """`y[m, first * PANEL : min(n, last * PANEL)] = x @ w + bias` for one task.

    `scratch` is an address of `MAX_ROWS * PANEL` floats, for the last panel of a ragged `n`; `bias`
    is an address or 0.
    """
    whole = min(last, n // PANEL)
    if whole > first:
        if bias != 0:
            for row in range(m):
                at = first * PANEL * 4
                copy_row(bias + at, y + row * n * 4 + at, (whole - first) * PANEL)
        rows_by_panels(m, x, k * 4, w, k, y, n * 4, first, whole, 1 if bias != 0 else 0, is_bf16)
    if last > whole:
        at = w + whole * k * PANEL * (2 if is_bf16 else 4)
        width = n - whole * PANEL
        for row in range(0, m, MAX_ROWS):
            rows = min(MAX_ROWS, m - row)
            if bias != 0:
                for r in range(rows):
                    copy_row(bias + whole * PANEL * 4, scratch + r * PANEL * 4, width)
            few_rows(
                rows,
                x + row * k * 4,
                k * 4,
                at,
                0,
                scratch,
                PANEL * 4,
                k,
                1 if bias != 0 else 0,
                is_bf16,
            )
            for r in range(rows):
                to = y + ((row + r) * n + whole * PANEL) * 4
                copy_row(scratch + r * PANEL * 4, to, width)


@threads.kernel
def _linear(m, x, w, bias, y, n, k, is_bf16, workers):  # type: ignore[no-untyped-def]
    panels = (n + PANEL - 1) // PANEL
    # Few rows: smaller tasks, so that the threads end together.
    width = max(4, min(PANELS, panels // (4 * workers) // 4 * 4))
    across = (panels + width - 1) // width
    tasks = across * ((m + ROWS - 1) // ROWS)
    counter = np.zeros(1, np.int64)
    for _ in prange(workers):
        scratch = np.zeros(MAX_ROWS * PANEL, np.float32)
        task = fetch_add(counter.ctypes.data, 1)
        while task < tasks:
            # Consecutive tasks share panels, which are then still in the cache.
            row = task // across * ROWS
            first = task % across * width
            linear_block(
                min(ROWS, m - row),
                x + row * k * 4,
                w,
                bias,
                y + row * n * 4,
                n,
                k,
                first,
                min(panels, first + width),
                is_bf16,
                scratch.ctypes.data,
            )
            task = fetch_add(counter.ctypes.data, 1)


def pack_panels(weight: torch.Tensor) -> torch.Tensor:
    """A weight in panels.

    Args:
        weight: `[..., N, K]` float32 or bfloat16.

    Returns:
        `[..., ceil(N / PANEL), K, PANEL]` of the same dtype, zero where N is ragged. In bfloat16
        column i and column i + LANES of a panel stand side by side, because both are then one shift
        or one mask away from a 32-bit word.
    """
    *lead, n, k = weight.shape
    panels = -(-n // PANEL)
    padded = weight.new_zeros(*lead, panels * PANEL, k)
    padded[..., :n, :] = weight
    packed = padded.view(*lead, panels, PANEL, k).transpose(-1, -2)
    if weight.dtype == torch.bfloat16:
        packed = packed.reshape(*lead, panels, k, 2, LANES).transpose(-1, -2)
    return packed.reshape(*lead, panels, k, PANEL).contiguous()


class PanelLinear:
    """`y = x @ weight.T + bias` on a packed weight; a row's bits do not depend on the other rows.

    Args:
        weight: `[N, K]` float32 or bfloat16; copied.
        bias: `[N]`, or None; kept in float32.
    """

    implementation = "panels"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._size = weight.numel()
        self._packed = pack_panels(weight)
        self._bias = None if bias is None else bias.float().contiguous()
        self._is_bf16 = int(weight.dtype == torch.bfloat16)
        self.weight_bytes = self._packed.numel() * self._packed.element_size()
        self._addresses: tuple[int, int] = (
            self._packed.data_ptr(),
            0 if self._bias is None else self._bias.data_ptr(),
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to `x` `[T, K]` float32; returns a new `[T, N]` float32."""
        rows = len(x)
        check_matrix(x, self.in_features)
        y = torch.empty(rows, self.out_features)
        w, bias = self._addresses
        _linear(
            rows,
            x.data_ptr(),
            w,
            bias,
            y.data_ptr(),
            self.out_features,
            self.in_features,
            self._is_bf16,
            threads.workers(rows * self._size),
        )
        return y


def check_matrix(x: torch.Tensor, columns: int) -> None:
    """Assert that a kernel may read `x` by its address.

    Args:
        x: What should be `[T, columns]`, float32 and contiguous.
        columns: Its width.
    """
    assert x.dtype is torch.float32, f"float32 expected, not {x.dtype}"
    assert x.shape[-1] == columns, f"{columns} columns expected, not {tuple(x.shape)}"
    assert x.is_contiguous(), "contiguous rows expected"
