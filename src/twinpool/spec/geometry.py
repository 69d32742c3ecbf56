"""Geometry: the bytes of one KV row and one state slot, as one frozen value.

Pools, sizing, boot log and planner read the same object. Knows no amount of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from twinpool.errors import ConfigError
from twinpool.spec.config import STATE_DTYPES
from twinpool.spec.layer import LayerSpec, full_of, linear_of
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
        num_full_layers: Layers of the whole model that write rows.
        num_linear_layers: Layers of the whole model that keep a state.
        draft_row_bytes: What the draft layers of speculation add to one token.
        pp: Pipeline stages; bytes are those of the largest stage of each kind.
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
    draft_row_bytes: int = 0
    pp: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: one token's keys and values, those of draft layers included."""
        return self.key_bytes + self.value_bytes + self.draft_row_bytes

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
    pp: int = 1,
    num_draft_layers: int = 0,
) -> Geometry:
    """Work out the bytes of one row and one slot on one rank.

    Args:
        spec: The model.
        kv_dtype: Dtype of rows; None: the dtype of the weights.
        state_dtype: Dtype of recurrent states; None: what the config says, else float32.
        conv_dtype: Dtype of conv states; None: the dtype of the weights, so that a conv state
            holds its inputs without loss (bfloat16 in nearly every checkpoint).
        tp: Tensor parallel ranks, 1 or more.
        pp: Pipeline stages, 1 or more.
        num_draft_layers: Draft layers whose rows stand beside the model's, 0 or more.

    Raises:
        ConfigError: If heads do not split over the ranks, there are more stages than layers, or a
            state dtype is not one of float32, bfloat16, float16.

    Source: the reference engine's configurators. Every rank of a pipeline charges the largest
    stage, so that all of them come to the same counts.
    """
    for name, count in (("tensor parallel size", tp), ("number of pipeline stages", pp)):
        if count < 1:
            raise ConfigError(f"{name} is {count}", hint="use 1 or more")
    rows = kv_dtype or spec.dtype
    state = _state_dtype("recurrent state", state_dtype or spec.state_dtype)
    conv = _state_dtype("conv state", conv_dtype or spec.dtype)
    for layer in spec.layers:
        layer.check_tp(tp)
    stages = stage_layers(spec.layers, pp)
    keys, values = max((_row_parts(stage, tp, rows) for stage in stages), key=sum)
    convs, recurrent = max(
        (_slot_parts(stage, tp, conv, state) for stage in stages), key=lambda parts: sum(parts)
    )
    return Geometry(
        key_bytes=keys,
        value_bytes=values,
        conv_bytes=convs,
        recurrent_bytes=recurrent,
        kv_dtype=rows,
        conv_dtype=conv,
        state_dtype=state,
        tp=tp,
        num_full_layers=len(spec.full_layers),
        num_linear_layers=len(spec.linear_layers),
        draft_row_bytes=_draft_row_bytes(spec, num_draft_layers, tp, rows),
        pp=pp,
    )


def stage_layers(layers: tuple[LayerSpec, ...], pp: int) -> tuple[tuple[LayerSpec, ...], ...]:
    """Cut the layers into pipeline stages; the last stages take one more where it does not divide.

    Args:
        layers: All layers, first to last.
        pp: Stages, 1 or more.

    Raises:
        ConfigError: If there are more stages than layers.

    Source: the reference engine's `get_pp_indices`.
    """
    if pp > len(layers):
        raise ConfigError(
            f"{len(layers)} layers do not make {pp} pipeline stages",
            hint=f"use --pp {len(layers)} or less",
        )
    base, extra = divmod(len(layers), pp)
    sizes = [base + (stage >= pp - extra) for stage in range(pp)]
    ends = [sum(sizes[: stage + 1]) for stage in range(pp)]
    return tuple(layers[end - size : end] for size, end in zip(sizes, ends, strict=True))


def _row_parts(layers: tuple[LayerSpec, ...], tp: int, dtype: DType) -> tuple[int, int]:
    full = [mixer for mixer in map(full_of, layers) if mixer is not None]
    return (
        sum(mixer.key_bytes(tp, dtype) for mixer in full),
        sum(mixer.value_bytes(tp, dtype) for mixer in full),
    )


def _slot_parts(
    layers: tuple[LayerSpec, ...], tp: int, conv: DType, state: DType
) -> tuple[int, int]:
    linear = [mixer for mixer in map(linear_of, layers) if mixer is not None]
    return (
        sum(mixer.conv_elements(tp) for mixer in linear) * conv.itemsize,
        sum(mixer.recurrent_elements(tp) for mixer in linear) * state.itemsize,
    )


def _draft_row_bytes(spec: ModelSpec, count: int, tp: int, dtype: DType) -> int:
    """Rows of the draft layers: like the model's own where the config describes fewer."""
    if not count:
        return 0
    full = [mixer for mixer in map(full_of, spec.layers) if mixer is not None]
    if not full:
        raise ConfigError(
            f"{count} draft layers write KV rows, and the model has no full attention",
            hint="leave out --draft-layers",
        )
    mixers = (spec.draft_layers + (full[-1],) * count)[:count]
    return sum(mixer.key_bytes(tp, dtype) + mixer.value_bytes(tp, dtype) for mixer in mixers)


def _state_dtype(name: str, dtype: DType) -> DType:
    if dtype not in STATE_DTYPES:
        known = ", ".join(known.value for known in STATE_DTYPES)
        raise ConfigError(f"{name} dtype is {dtype.value}", hint=f"one of {known}")
    return dtype
