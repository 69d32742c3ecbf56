"""Qwen3.5, dense and MoE: its tensor names and its separate Gated DeltaNet projections.

Knows no pools and no vision: of a multimodal checkpoint the language model is read.
"""

from __future__ import annotations

import torch

from twinpool.models.config import DecoderConfig
from twinpool.models.qwen3_next import finish_gated_delta
from twinpool.models.tensors import TensorSource
from twinpool.models.weights import MixerTensors
from twinpool.spec.layer import GatedDeltaSpec

PREFIXES = ("model.", "model.language_model.")


def read_gated_delta(
    source: TensorSource,
    prefix: str,
    spec: GatedDeltaSpec,
    config: DecoderConfig,
    dtype: torch.dtype,
) -> MixerTensors:
    """Read a mixer whose projections stand in four tensors, in the order that the blocks use.

    Args:
        source: Where tensors come from.
        prefix: Up to and with `linear_attn.`.
        spec: Its shapes.
        config: Hidden size and epsilon.
        dtype: Dtype of the linears.

    Source: transformers 5.24, `Qwen3_5GatedDeltaNet`.
    """
    heads = spec.num_value_heads
    rows = {"qkv": spec.conv_channels, "z": heads * spec.value_width, "b": heads, "a": heads}
    parts = [
        source.take(f"{prefix}in_proj_{name}.weight", (count, config.spec.hidden_size)).to(dtype)
        for name, count in rows.items()
    ]
    return finish_gated_delta(source, prefix, spec, config, dtype, parts)
