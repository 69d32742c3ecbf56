"""Geometry: the bytes of one KV row and one state slot, as one frozen value.

Pools, sizing, boot log and planner read the same object. Knows no amount of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from twinpool.errors import ConfigError
from twinpool.spec.config import STATE_DTYPES
from twinpool.spec.layer import FullSpec, LinearSpec
from twinpool.spec.model import ModelSpec
from twinpool.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Bytes of one row and one slot on one rank, over all layers of their kind.

    Attributes:
        key_bytes: Keys of one token, all full-attention layers; with latent attention, the latent.
        value_bytes: Values of one token, all full-attention layers; 0 with latent attention.
        conv_bytes: Conv states of one slot, all linear layers.
        recurrent_bytes: Recurrent states of one slot, all linear layers.
        kv_dtype: Dtype of rows.
        conv_dtype: Dtype of conv states.
        state_dtype: Dtype of recurrent states.
        tp: Tensor parallel ranks over which heads are split.
        num_full_layers: Layers that write rows.
        num_linear_layers: Layers that keep a state.
    """

    key_bytes: int
    value_bytes: int
    conv_bytes: int
    recurrent_bytes: int
    kv_dtype: DType
    conv_dtype: DType
    state_dtype: DType
    tp: int
    num_full_layers: int
    num_linear_layers: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: one token's keys and values."""
        return self.key_bytes + self.value_bytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of one state slot; 0 for a model without linear layers."""
        return self.conv_bytes + self.recurrent_bytes

    @property
    def token_equiv(self) -> Fraction:
        """Rows that one slot is worth, exactly.

        Raises:
            ConfigError: If the model has no full-attention layer and so no rows.
        """
        if not self.row_bytes:
            raise ConfigError("a model without full-attention layers has no KV rows to compare")
        return Fraction(self.slot_bytes, self.row_bytes)


def geometry_of(
    spec: ModelSpec,
    *,
    kv_dtype: DType | None = None,
    state_dtype: DType | None = None,
    conv_dtype: DType | None = None,
    tp: int = 1,
) -> Geometry:
    """Work out the bytes of one row and one slot.

    Args:
        spec: The model.
        kv_dtype: Dtype of rows; None: the dtype of the weights.
        state_dtype: Dtype of recurrent states; None: what the config says, else float32.
        conv_dtype: Dtype of conv states; None: the dtype of the weights, so that a conv state
            holds its inputs without loss (bfloat16 in nearly every checkpoint).
        tp: Tensor parallel ranks, 1 or more.

    Raises:
        ConfigError: If heads do not split over the ranks, or a state dtype is not one of
            float32, bfloat16, float16.
    """
    if tp < 1:
        raise ConfigError(f"tensor parallel size is {tp}", hint="use --tp 1 or more")
    rows = kv_dtype or spec.dtype
    state = _state_dtype("recurrent state", state_dtype or spec.state_dtype)
    conv = _state_dtype("conv state", conv_dtype or spec.dtype)
    full = [layer for layer in spec.layers if isinstance(layer, FullSpec)]
    linear = [layer for layer in spec.layers if isinstance(layer, LinearSpec)]
    for layer in spec.layers:
        layer.check_tp(tp)
    return Geometry(
        key_bytes=sum(layer.key_elements(tp) for layer in full) * rows.itemsize,
        value_bytes=sum(layer.value_elements(tp) for layer in full) * rows.itemsize,
        conv_bytes=sum(layer.conv_elements(tp) for layer in linear) * conv.itemsize,
        recurrent_bytes=sum(layer.recurrent_elements(tp) for layer in linear) * state.itemsize,
        kv_dtype=rows,
        conv_dtype=conv,
        state_dtype=state,
        tp=tp,
        num_full_layers=len(full),
        num_linear_layers=len(linear),
    )


def _state_dtype(name: str, dtype: DType) -> DType:
    if dtype not in STATE_DTYPES:
        known = ", ".join(known.value for known in STATE_DTYPES)
        raise ConfigError(f"{name} dtype is {dtype.value}", hint=f"one of {known}")
    return dtype
