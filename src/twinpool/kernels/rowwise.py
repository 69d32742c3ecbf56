"""Ops on one row at a time: norms, gates, softmax, router, embedding, rotary factors.

All are one compiled kernel with a number for the op, because every kernel costs seconds to compile
and the rows are shared out in the same way. Knows no layer.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import prange

from twinpool.kernels import threads
from twinpool.kernels.batch import IntArray
from twinpool.kernels.linear import check_matrix
from twinpool.kernels.tiles import (
    add_row,
    add_scaled_row,
    copy_row,
    dot,
    exp_sum,
    fetch_add,
    maximum,
    norm_row,
    read_f32,
    read_i32,
    shift_row,
    sigmoid_of,
    silu_mul_row,
    softmax_weights_row,
    widen_row,
    write_f32,
    write_i32,
)
from twinpool.kernels.views import Rope

RMS_NORM, ADD_RMS_NORM, SILU_MUL, ADD_GATED, LOG_SOFTMAX, ROUTE, EMBED_F32, EMBED_BF16, ROPE = (
    range(9)
)

SERIAL = 8192
"""Elements below which one thread is done before two have been woken."""


@threads.inlined
def inverse_rms(x, width, eps):  # type: ignore[no-untyped-def]
    """`1 / sqrt(mean(x^2) + eps)` of a row at an address, in float32 from the sum on."""
    mean = dot(x, x, width) / np.float32(width)
    return np.float32(1.0) / np.sqrt(mean + np.float32(eps))


@threads.part
def route_row(logits, ids, weights, experts, top_k, normalise, probs):  # type: ignore[no-untyped-def]
    """Softmax over `experts` logits, then the `top_k` largest, the lower id first where equal."""
    top = maximum(logits, experts)
    softmax_weights_row(logits, top, probs, experts)
    scale = np.float32(1.0) / exp_sum(logits, top, experts)
    total = np.float32(0.0)
    for choice in range(top_k):
        best, largest = 0, np.float32(-1.0)
        for expert in range(experts):
            value = read_f32(probs + expert * 4)
            if value > largest:
                best, largest = expert, value
        write_f32(np.float32(-2.0), probs + best * 4)
        write_i32(best, ids + choice * 4)
        write_f32(largest * scale, weights + choice * 4)
        total += largest * scale
    if normalise:
        for choice in range(top_k):
            write_f32(read_f32(weights + choice * 4) / total, weights + choice * 4)


@threads.part
def one_row(op, row, a, b, c, out, width, extra, eps, scratch):  # type: ignore[no-untyped-def]
    """Row `row` of an op; what the addresses mean is at the wrappers below."""
    at = row * width * 4
    if op == RMS_NORM:
        norm_row(a + at, b, inverse_rms(a + at, width, eps), out + at, width)
    elif op == ADD_RMS_NORM:
        add_row(a + at, c + at, a + at, width)
        norm_row(a + at, b, inverse_rms(a + at, width, eps), out + at, width)
    elif op == SILU_MUL:
        silu_mul_row(a + 2 * at, a + 2 * at + width * 4, out + at, width)
    elif op == ADD_GATED:
        add_scaled_row(out + at, a + at, sigmoid_of(read_f32(b + row * 4)), out + at, width)
    elif op == LOG_SOFTMAX:
        top = maximum(a + at, width)
        total = exp_sum(a + at, top, width)
        shift_row(a + at, top + np.float32(math.log(total)), out + at, width)
    elif op == ROUTE:
        k = row * extra * 4
        route_row(a + at, out + k, b + k, width, extra, c != 0, scratch)
    elif op == EMBED_F32:
        copy_row(a + read_i32(b + row * 4) * width * 4, out + at, width)
    elif op == EMBED_BF16:
        widen_row(a + read_i32(b + row * 4) * width * 2, out + at, width)
    elif op == ROPE:
        position = np.float32(read_i32(a + row * 4))
        for i in range(0, width * 4, 4):
            angle = np.float64(position * read_f32(b + i))
            write_f32(np.float32(math.cos(angle) * eps), c + at + i)
            write_f32(np.float32(math.sin(angle) * eps), out + at + i)


@threads.kernel
def _rows(op, rows, a, b, c, out, width, extra, eps, workers):  # type: ignore[no-untyped-def]
    scratch_width = width if op == ROUTE else 1
    if rows * width <= SERIAL:
        scratch = np.empty(scratch_width, np.float32)
        for row in range(rows):
            one_row(op, row, a, b, c, out, width, extra, eps, scratch.ctypes.data)
    else:
        counter = np.zeros(1, np.int64)
        each = max(1, min(16, rows // (2 * workers)))
        for _ in prange(workers):
            mine = np.empty(scratch_width, np.float32)
            first = fetch_add(counter.ctypes.data, each)
            while first < rows:
                for row in range(first, min(rows, first + each)):
                    one_row(op, row, a, b, c, out, width, extra, eps, mine.ctypes.data)
                first = fetch_add(counter.ctypes.data, each)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `reference.rms_norm`."""
    rows, width = x.shape
    check_matrix(x, width)
    check_matrix(weight, width)
    out = torch.empty(rows, width)
    args = (x.data_ptr(), weight.data_ptr(), 0, out.data_ptr(), width, 0, eps)
    _rows(RMS_NORM, rows, *args, threads.workers())
    return out


def add_rms_norm(
    residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """As `reference.add_rms_norm`.

    Changes:
        `residual += x`.
    """
    rows, width = x.shape
    check_matrix(residual, width)
    check_matrix(x, width)
    check_matrix(weight, width)
    assert len(residual) == rows, f"{len(residual)} residual rows for {rows} rows"
    out = torch.empty(rows, width)
    args = (residual.data_ptr(), weight.data_ptr(), x.data_ptr(), out.data_ptr(), width, 0, eps)
    _rows(ADD_RMS_NORM, rows, *args, threads.workers())
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.silu_mul`."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    check_matrix(gate_up, 2 * width)
    out = torch.empty(rows, width)
    args = (gate_up.data_ptr(), 0, 0, out.data_ptr(), width, 0, 0.0)
    _rows(SILU_MUL, rows, *args, threads.workers())
    return out


def add_gated(out: torch.Tensor, x: torch.Tensor, gate: torch.Tensor) -> None:
    """As `reference.add_gated`.

    Changes:
        `out += x * sigmoid(gate)`.
    """
    rows, width = x.shape
    check_matrix(x, width)
    check_matrix(out, width)
    check_matrix(gate, 1)
    assert len(out) == len(gate) == rows, "one gate and one output row per row"
    args = (x.data_ptr(), gate.data_ptr(), 0, out.data_ptr(), width, 0, 0.0)
    _rows(ADD_GATED, rows, *args, threads.workers())


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """As `reference.log_softmax`."""
    rows, width = logits.shape
    check_matrix(logits, width)
    out = torch.empty(rows, width)
    args = (logits.data_ptr(), 0, 0, out.data_ptr(), width, 0, 0.0)
    _rows(LOG_SOFTMAX, rows, *args, threads.workers())
    return out


def route(logits: torch.Tensor, top_k: int, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.route`."""
    rows, experts = logits.shape
    check_matrix(logits, experts)
    assert 0 < top_k <= experts, f"{top_k} of {experts} experts"
    ids = torch.empty(rows, top_k, dtype=torch.int32)
    weights = torch.empty(rows, top_k)
    args = (logits.data_ptr(), weights.data_ptr(), int(normalise), ids.data_ptr(), experts, top_k)
    _rows(ROUTE, rows, *args, 0.0, threads.workers())
    return ids, weights


def embed(table: torch.Tensor, tokens: IntArray) -> torch.Tensor:
    """As `reference.embed`.

    Raises:
        IndexError: A token is not below the table's length.
    """
    rows, width = len(tokens), table.shape[1]
    assert table.is_contiguous(), "contiguous rows expected"
    assert tokens.dtype == np.int32, f"int32 tokens expected, not {tokens.dtype}"
    if rows and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(table):
        raise IndexError(f"tokens {tokens.min()} to {tokens.max()}, table of {len(table)}")
    op = EMBED_BF16 if table.dtype == torch.bfloat16 else EMBED_F32
    tokens = np.ascontiguousarray(tokens)
    out = torch.empty(rows, width)
    args = (table.data_ptr(), tokens.ctypes.data, 0, out.data_ptr(), width, 0, 0.0)
    _rows(op, rows, *args, threads.workers())
    return out


def rope(positions: IntArray, inv_freq: torch.Tensor, scaling: float = 1.0) -> Rope:
    """As `reference.rope`."""
    rows, width = len(positions), len(inv_freq)
    check_matrix(inv_freq, width)
    assert positions.dtype == np.int32, f"int32 positions expected, not {positions.dtype}"
    assert positions.flags.c_contiguous, "contiguous positions expected"
    cos, sin = torch.empty(rows, width), torch.empty(rows, width)
    args = (positions.ctypes.data, inv_freq.data_ptr(), cos.data_ptr(), sin.data_ptr(), width, 0)
    _rows(ROPE, rows, *args, scaling, threads.workers())
    return Rope(cos, sin)
