"""Random layers, pools and ragged batches for the kernel tests; poisoned where nothing may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from twinpool.kernels.batch import RaggedBatch
from twinpool.kernels.views import AttentionWeights, GatedDeltaWeights, KvView, StateView


@dataclass
class LanePlan:
    """One lane of a test batch.

    Attributes:
        start: Tokens in memory.
        tokens: Tokens of this step.
        rows: Row of every position, `start + tokens` of them.
        slot: Working slot.
        events: `(tokens of this lane after which to copy, target slot)`.
    """

    start: int
    tokens: int
    rows: np.ndarray
    slot: int = 0
    events: Sequence[tuple[int, int]] = ()


def ragged(lanes: Sequence[LanePlan]) -> RaggedBatch:
    """The index arrays of these lanes."""

    def offsets(counts: list[int]) -> np.ndarray:
        return np.cumsum([0, *counts]).astype(np.int32)

    def packed(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)

    cu_tokens = offsets([lane.tokens for lane in lanes])
    events = [(int(cu_tokens[i]) + n - 1, s) for i, x in enumerate(lanes) for n, s in x.events]
    return RaggedBatch(
        cu_tokens=cu_tokens,
        starts=np.array([lane.start for lane in lanes], np.int32),
        positions=packed([np.arange(x.start, x.start + x.tokens) for x in lanes]),
        slots=np.array([lane.slot for lane in lanes], np.int32),
        cu_rows=offsets([lane.start + lane.tokens for lane in lanes]),
        rows=packed([lane.rows for lane in lanes]),
        new_rows=packed([lane.rows[lane.start :] for lane in lanes]),
        cu_events=offsets([len(lane.events) for lane in lanes]),
        event_tokens=np.array([token for token, _ in events], np.int32),
        event_slots=np.array([slot for _, slot in events], np.int32),
    )


def randn(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Normal float32 values from a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def poison(shape: tuple[int, int], bf16: bool) -> np.ndarray:
    """A pool that holds nothing but NaN."""
    if bf16:
        return np.full(shape, 0x7FC0, np.uint16)
    return np.full(shape, np.nan, np.float32)


@dataclass
class DeltaCase:
    """A Gated DeltaNet layer whose state lies in the middle of wider slots."""

    num_key_heads: int
    num_value_heads: int
    key_width: int
    value_width: int
    conv_width: int = 4
    num_slots: int = 12
    bf16: bool = False

    def __post_init__(self) -> None:
        sizes = (self.num_value_heads, self.key_width, self.value_width)
        channels = 2 * self.num_key_heads * self.key_width + sizes[0] * sizes[2]
        self.columns = channels + sizes[0] * sizes[2] + 2 * sizes[0]
        self.conv_size = (self.conv_width - 1) * channels
        self.recurrent_size = int(np.prod(sizes))
        self.state = StateView(
            recurrent=poison((self.num_slots, self.recurrent_size + 8), False),
            recurrent_offset=8,
            conv=poison((self.num_slots, self.conv_size + 7), self.bf16),
            conv_offset=3,
            num_key_heads=self.num_key_heads,
            num_value_heads=self.num_value_heads,
            key_width=self.key_width,
            value_width=self.value_width,
            conv_width=self.conv_width,
        )
        self.weights = GatedDeltaWeights(
            conv_weight=randn(1, self.conv_width, channels, scale=0.5),
            decay_rate=-torch.exp(randn(2, self.num_value_heads)),
            dt_bias=randn(3, self.num_value_heads),
            norm_weight=1 + randn(4, self.value_width, scale=0.1),
            eps=1e-6,
        )

    def recurrent(self, slot: int) -> np.ndarray:
        return self.state.recurrent[slot, 8 : 8 + self.recurrent_size]

    def conv(self, slot: int) -> np.ndarray:
        return self.state.conv[slot, 3 : 3 + self.conv_size]

    def start(self, *slots: int, seed: int | None = None) -> None:
        """Zero these slots, or fill them from a seed (the same values in each)."""
        for slot in slots:
            self.recurrent(slot)[:] = 0
            self.conv(slot)[:] = 0
            if seed is not None:
                self.recurrent(slot)[:] = randn(seed, self.recurrent_size, scale=0.1).numpy()
                conv = randn(seed + 1, self.conv_size)
                self.conv(slot)[:] = bits(conv) if self.bf16 else conv.numpy()

    def proj(self, seed: int, tokens: int) -> torch.Tensor:
        return randn(seed, tokens, self.columns)


@dataclass
class AttentionCase:
    """A full-attention layer that is the second of two inside a row."""

    num_query_heads: int
    num_kv_heads: int
    key_width: int
    value_width: int
    rotary_dim: int
    num_rows: int = 4096
    bf16: bool = False
    has_gate: bool = True
    has_norm: bool = True

    def __post_init__(self) -> None:
        keys, values = self.num_kv_heads * self.key_width, self.num_kv_heads * self.value_width
        self.columns = self.num_query_heads * (
            self.key_width + self.value_width * self.has_gate
        ) + (keys + values)
        self.kv = KvView(
            pool=poison((self.num_rows, 2 * (keys + values) + 3), self.bf16),
            k_offset=keys + values,
            v_offset=2 * keys + values,
            num_heads=self.num_kv_heads,
            key_width=self.key_width,
            value_width=self.value_width,
        )
        self.inv_freq = 1e4 ** -(torch.arange(0, self.rotary_dim, 2).float() / self.rotary_dim)
        self.weights = AttentionWeights(
            num_query_heads=self.num_query_heads,
            q_norm=1 + randn(5, self.key_width, scale=0.1) if self.has_norm else None,
            k_norm=1 + randn(6, self.key_width, scale=0.1) if self.has_norm else None,
            eps=1e-6,
            scale=self.key_width**-0.5,
            has_gate=self.has_gate,
        )

    def proj(self, seed: int, tokens: int) -> torch.Tensor:
        return randn(seed, tokens, self.columns)

    def clear(self) -> None:
        self.kv.pool[:] = poison((1, 1), self.bf16)[0, 0]


def bits(x: torch.Tensor) -> np.ndarray:
    """The bfloat16 bits of `x`, rounded to nearest even."""
    return x.to(torch.bfloat16).view(torch.uint16).numpy()


def same_bits(a: torch.Tensor | np.ndarray, b: torch.Tensor | np.ndarray) -> bool:
    """True when both hold the same bits, and no NaN."""
    left, right = np.ascontiguousarray(a), np.ascontiguousarray(b)
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    if left.dtype == np.float32:
        assert not np.isnan(left).any()
    return left.tobytes() == right.tobytes()
