"""Qwen3-Next: its tensor names and the layout of its Gated DeltaNet projections.

Knows no pools: reading gives `MixerTensors` in the layout that every family shares.
"""

from __future__ import annotations

import torch

from twinpool.kernels.views import GatedDeltaWeights
from twinpool.models.config import DecoderConfig
from twinpool.models.tensors import TensorSource
from twinpool.models.weights import MixerTensors, own_float
from twinpool.spec.layer import GatedDeltaSpec

PREFIXES = ("model.",)


def read_gated_delta(
    source: TensorSource,
    prefix: str,
    spec: GatedDeltaSpec,
    config: DecoderConfig,
    dtype: torch.dtype,
) -> MixerTensors:
    """Read a mixer whose projections are interleaved by key head.

    Each key head has rows for its query, its key, the values of its value heads and their gates;
    the second projection has `b` and then `a` of those heads. Both are taken apart here.

    Args:
        source: Where tensors come from.
        prefix: Up to and with `linear_attn.`.
        spec: Its shapes.
        config: Hidden size and epsilon.
        dtype: Dtype of the linears.

    Source: transformers 5.24, `Qwen3NextGatedDeltaNet.fix_query_key_value_ordering`.
    """
    groups, key, hidden = spec.num_key_heads, spec.key_width, config.spec.hidden_size
    per_group = spec.num_value_heads // groups
    value = per_group * spec.value_width
    rows = groups * (2 * key + 2 * value)
    qkvz = source.take(f"{prefix}in_proj_qkvz.weight", (rows, hidden)).to(dtype)
    parts = list(torch.split(qkvz.view(groups, -1, hidden), [key, key, value, value], dim=1))
    ba = source.take(f"{prefix}in_proj_ba.weight", (2 * spec.num_value_heads, hidden)).to(dtype)
    parts += torch.split(ba.view(groups, -1, hidden), [per_group, per_group], dim=1)
    return finish_gated_delta(source, prefix, spec, config, dtype, parts)


def finish_gated_delta(
    source: TensorSource,
    prefix: str,
    spec: GatedDeltaSpec,
    config: DecoderConfig,
    dtype: torch.dtype,
    parts: list[torch.Tensor],
) -> MixerTensors:
    """Join the projections and read what both generations of the mixer name alike.

    Args:
        source: Where tensors come from.
        prefix: Up to and with `linear_attn.`.
        spec: Its shapes.
        config: Hidden size and epsilon.
        dtype: Dtype of the linears.
        parts: Rows of queries, keys, values, `z`, `b` and `a`, each `[..., hidden]`.
    """
    heads, width, hidden = spec.num_value_heads, spec.value_width, config.spec.hidden_size
    conv = source.take(f"{prefix}conv1d.weight", (spec.conv_channels, 1, spec.conv_width))
    small = GatedDeltaWeights(
        conv_weight=conv.squeeze(1).float().T.contiguous(),
        decay_rate=-torch.exp(source.take(f"{prefix}A_log", (heads,)).float()),
        dt_bias=own_float(source.take(f"{prefix}dt_bias", (heads,))),
        norm_weight=own_float(source.take(f"{prefix}norm.weight", (width,))),
        eps=config.norm_eps,
    )
    out_proj = source.take(f"{prefix}out_proj.weight", (hidden, heads * width)).to(dtype)
    in_proj = torch.cat([part.reshape(-1, hidden) for part in parts])
    return MixerTensors(in_proj=in_proj, small=small, out_proj=out_proj)
