"""Views: where one layer's share of a row or a slot lies, and the small weights of a mixer.

Knows no allocator: a view names memory, a `RaggedBatch` says which units of it are touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

Table = npt.NDArray[np.int64]
"""Addresses and sizes in the order that a kernel reads them."""

FloatOrBits = npt.NDArray[np.float32] | npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvView:
    """One full-attention layer's keys and values inside every row of the KV pool.

    A row holds, for each full-attention layer, keys `[HK, key_width]` then values
    `[HK, value_width]`.

    Attributes:
        pool: `[R, row_elements]`, C-contiguous; float32, or the bits of bfloat16 as uint16.
        k_offset: Element of a row where this layer's keys start.
        v_offset: Element of a row where this layer's values start.
        num_heads: Key heads, `HK`.
        key_width: Elements of one key head.
        value_width: Elements of one value head.
        table: Address of the first row's keys and values, bytes of a row, 1 for bfloat16, heads,
            widths; derived.
    """

    pool: FloatOrBits
    k_offset: int
    v_offset: int
    num_heads: int
    key_width: int
    value_width: int
    table: Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_pool("KV pool", self.pool)
        _check_span("keys", self.pool, self.k_offset, self.num_heads * self.key_width)
        _check_span("values", self.pool, self.v_offset, self.num_heads * self.value_width)
        address, size = self.pool.ctypes.data, self.pool.itemsize
        _set_table(
            self,
            address + self.k_offset * size,
            address + self.v_offset * size,
            self.pool.shape[1] * size,
            int(size == 2),
            self.num_heads,
            self.key_width,
            self.value_width,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """One linear-attention layer's conv and recurrent state inside every slot of the state pool.

    Both arrays may be views of the same memory with different element types.

    Attributes:
        recurrent: `[S, slot_elements]` float32; the layer's `[HV, K, V]` starts at
            `recurrent_offset`.
        recurrent_offset: Element of a slot where the recurrent state starts.
        conv: `[S, slot_elements]` float32, or the bits of bfloat16 as uint16; the layer's
            `[W - 1, conv_channels]`, oldest column first, starts at `conv_offset`.
        conv_offset: Element of a slot where the conv state starts.
        num_key_heads: `HK`.
        num_value_heads: `HV`, a multiple of `HK`.
        key_width: `K`.
        value_width: `V`.
        conv_width: Taps of the conv, `W`.
        table: Address of the first slot's recurrent state and bytes of a slot, the same of the conv
            state, 1 for a bfloat16 conv state, `HK`, `HV`, `K`, `V`, `W`; derived.
    """

    recurrent: npt.NDArray[np.float32]
    recurrent_offset: int
    conv: FloatOrBits
    conv_offset: int
    num_key_heads: int
    num_value_heads: int
    key_width: int
    value_width: int
    conv_width: int
    table: Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_pool("recurrent state", self.recurrent)
        _check_pool("conv state", self.conv)
        assert self.num_value_heads % self.num_key_heads == 0, "HV must be a multiple of HK"
        size = self.num_value_heads * self.key_width * self.value_width
        _check_span("recurrent state", self.recurrent, self.recurrent_offset, size)
        size = (self.conv_width - 1) * self.conv_channels
        _check_span("conv state", self.conv, self.conv_offset, size)
        _set_table(
            self,
            self.recurrent.ctypes.data + self.recurrent_offset * 4,
            self.recurrent.shape[1] * 4,
            self.conv.ctypes.data + self.conv_offset * self.conv.itemsize,
            self.conv.shape[1] * self.conv.itemsize,
            int(self.conv.itemsize == 2),
            self.num_key_heads,
            self.num_value_heads,
            self.key_width,
            self.value_width,
            self.conv_width,
        )

    @property
    def conv_channels(self) -> int:
        """Channels of the conv: queries, keys and values side by side, `C`."""
        keys = self.num_key_heads * self.key_width
        return 2 * keys + self.num_value_heads * self.value_width


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaWeights:
    """The small weights of one Gated DeltaNet layer, all float32 and C-contiguous.

    Attributes:
        conv_weight: `[W, C]`, the tap of the oldest token first; HF's `[C, 1, W]` transposed.
        decay_rate: `[HV]`, `-exp(A_log)`.
        dt_bias: `[HV]`.
        norm_weight: `[V]` of the gated norm, as it multiplies.
        eps: Epsilon of the gated norm.
        table: Addresses of the four weights; derived.
    """

    conv_weight: torch.Tensor
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    norm_weight: torch.Tensor
    eps: float
    table: Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensors = (self.conv_weight, self.decay_rate, self.dt_bias, self.norm_weight)
        for tensor in tensors:
            _check_weight(tensor)
        assert len(self.decay_rate) == len(self.dt_bias), "one decay rate and one bias per head"
        _set_table(self, *(tensor.data_ptr() for tensor in tensors))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """The small weights and numbers of one full-attention layer.

    Attributes:
        num_query_heads: `H`, a multiple of the layer's key heads.
        q_norm: `[D]` float32 weight of the query RMSNorm as it multiplies, or None for no norm.
        k_norm: The same for keys; both or neither.
        eps: Epsilon of those norms.
        scale: What scores are multiplied by.
        has_gate: True when the projection carries an output gate per output element.
        table: Heads, addresses of the norms or 0, 1 for a gate; derived.
    """

    num_query_heads: int
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float
    scale: float
    has_gate: bool
    table: Table = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert (self.q_norm is None) == (self.k_norm is None), "both norms or neither"
        norms = [0, 0]
        for index, tensor in enumerate((self.q_norm, self.k_norm)):
            if tensor is not None:
                _check_weight(tensor)
                norms[index] = tensor.data_ptr()
        _set_table(self, self.num_query_heads, *norms, int(self.has_gate))


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary factors of the packed tokens of one step, shared by every layer.

    Attributes:
        cos: `[T, rotary_dim / 2]` float32.
        sin: The same shape.
    """

    cos: torch.Tensor
    sin: torch.Tensor


def _set_table(
    view: KvView | StateView | GatedDeltaWeights | AttentionWeights, *values: int
) -> None:
    object.__setattr__(view, "table", np.array(values, np.int64))


def _check_weight(tensor: torch.Tensor) -> None:
    assert tensor.dtype == torch.float32, "mixer weights are float32"
    assert tensor.is_contiguous(), "mixer weights are contiguous"


def _check_pool(name: str, pool: FloatOrBits) -> None:
    assert pool.ndim == 2, f"{name} must be 2-D"
    assert pool.flags.c_contiguous, f"{name} must be C-contiguous"
    assert pool.dtype in (np.float32, np.uint16), f"{name} is {pool.dtype}"


def _check_span(name: str, pool: FloatOrBits, offset: int, size: int) -> None:
    assert 0 <= offset <= pool.shape[1] - size, f"{name}: {offset} + {size} > {pool.shape[1]}"
