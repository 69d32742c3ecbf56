"""The tensors of one layer in the one layout that blocks and kernels know, and how to read them.

Knows no pool. Rows of linears that read the same input stand under one another, so that one product
serves them all; norms that checkpoints store around zero are stored here around one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from twinpool.kernels.views import AttentionWeights, GatedDeltaWeights
from twinpool.models.config import DecoderConfig, DenseSpec, MoeSpec
from twinpool.models.tensors import TensorSource
from twinpool.spec.layer import GatedDeltaSpec, GqaSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerTensors:
    """One attention mixer, full or linear.

    Attributes:
        in_proj: `[N, hidden]`, all that reads the layer's input, rows in the order that
            `kernels` documents for the mixer.
        small: Its weights that are not linears.
        out_proj: `[hidden, heads * value width]`.
    """

    in_proj: torch.Tensor
    small: GatedDeltaWeights | AttentionWeights
    out_proj: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTensors:
    """One gated MLP.

    Attributes:
        gate_up: `[2 width, hidden]`, rows gate, up.
        down: `[hidden, width]`.
    """

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeTensors:
    """One sparse block of `E` experts.

    Attributes:
        router: `[E + 1, hidden]`, rows the experts' scores, then the shared expert's gate.
        gate_up: `[E, 2 width, hidden]`.
        down: `[E, hidden, width]`.
        shared: The shared expert.
    """

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    shared: DenseTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """One decoder layer.

    Attributes:
        input_norm: float32 `[hidden]`, around one, before the mixer.
        mixer: Of the attention.
        post_norm: float32 `[hidden]`, around one, before the MLP.
        mlp: Of what follows.
    """

    input_norm: torch.Tensor
    mixer: MixerTensors
    post_norm: torch.Tensor
    mlp: DenseTensors | MoeTensors


def own_float(tensor: torch.Tensor) -> torch.Tensor:
    """Return a float32 copy, so that nothing keeps the file mapped."""
    return tensor.to(torch.float32, copy=True)


def centred_norm(source: TensorSource, name: str, width: int) -> torch.Tensor:
    """Read a norm weight that the checkpoint stores around zero.

    Args:
        source: Where tensors come from.
        name: Its name.
        width: Its elements.

    Returns:
        float32 `[width]`, around one.
    """
    return 1.0 + source.take(name, (width,)).float()


# How a family reads its linear mixer: source, prefix, spec, config, dtype of the linears.
ReadGatedDelta = Callable[
    [TensorSource, str, GatedDeltaSpec, DecoderConfig, torch.dtype], MixerTensors
]


def read_layer(
    source: TensorSource,
    prefix: str,
    layer: int,
    config: DecoderConfig,
    dtype: torch.dtype,
    read_gated_delta: ReadGatedDelta,
) -> LayerTensors:
    """Read one decoder layer.

    Args:
        source: Where tensors come from.
        prefix: Up to and before `layers.`.
        layer: Its index.
        config: Shapes and numbers.
        dtype: Dtype of the linears.
        read_gated_delta: The family's way to read a linear mixer.
    """
    name = f"{prefix}layers.{layer}."
    hidden = config.spec.hidden_size
    spec, mlp = config.spec.layers[layer], config.mlps[layer]
    if isinstance(spec, GqaSpec):
        mixer = read_attention(source, f"{name}self_attn.", spec, config, dtype)
    else:
        assert isinstance(spec, GatedDeltaSpec)
        mixer = read_gated_delta(source, f"{name}linear_attn.", spec, config, dtype)
    return LayerTensors(
        input_norm=centred_norm(source, f"{name}input_layernorm.weight", hidden),
        mixer=mixer,
        post_norm=centred_norm(source, f"{name}post_attention_layernorm.weight", hidden),
        mlp=read_mlp(source, f"{name}mlp.", mlp, hidden, dtype)
        if isinstance(mlp, DenseSpec)
        else read_moe(source, f"{name}mlp.", mlp, hidden, dtype),
    )


def read_attention(
    source: TensorSource, prefix: str, spec: GqaSpec, config: DecoderConfig, dtype: torch.dtype
) -> MixerTensors:
    """Read a full-attention mixer whose query projection carries the output gate.

    Args:
        source: Where tensors come from.
        prefix: Up to and with `self_attn.`.
        spec: Its shapes.
        config: Hidden size and epsilon.
        dtype: Dtype of the linears.

    Source: transformers 5.24, `Qwen3NextAttention`.
    """
    heads, width, hidden = spec.num_query_heads, spec.key_width, config.spec.hidden_size
    keys = spec.num_kv_heads * width
    # Every head has its query rows and then its gate rows.
    both = source.take(f"{prefix}q_proj.weight", (2 * heads * width, hidden)).to(dtype)
    query, gate = both.view(heads, 2, width, hidden).unbind(1)
    parts = (
        query.reshape(-1, hidden),
        gate.reshape(-1, hidden),
        source.take(f"{prefix}k_proj.weight", (keys, hidden)).to(dtype),
        source.take(f"{prefix}v_proj.weight", (keys, hidden)).to(dtype),
    )
    small = AttentionWeights(
        num_query_heads=heads,
        q_norm=centred_norm(source, f"{prefix}q_norm.weight", width),
        k_norm=centred_norm(source, f"{prefix}k_norm.weight", width),
        eps=config.norm_eps,
        scale=width**-0.5,
        has_gate=True,
    )
    out_proj = source.take(f"{prefix}o_proj.weight", (hidden, heads * width)).to(dtype)
    return MixerTensors(in_proj=torch.cat(parts), small=small, out_proj=out_proj)


def read_mlp(
    source: TensorSource, prefix: str, spec: DenseSpec, hidden: int, dtype: torch.dtype
) -> DenseTensors:
    """Read a gated MLP; `prefix` ends before `gate_proj`."""
    parts = [
        source.take(f"{prefix}{name}.weight", (spec.width, hidden)).to(dtype)
        for name in ("gate_proj", "up_proj")
    ]
    return DenseTensors(
        gate_up=torch.cat(parts),
        down=source.take(f"{prefix}down_proj.weight", (hidden, spec.width)).to(dtype),
    )


def read_moe(
    source: TensorSource, prefix: str, spec: MoeSpec, hidden: int, dtype: torch.dtype
) -> MoeTensors:
    """Read a sparse block, its experts one by one or already in one tensor.

    Args:
        source: Where tensors come from.
        prefix: Up to and with `mlp.`.
        spec: Its shapes.
        hidden: Elements of the residual stream.
        dtype: Dtype of the linears.
    """
    experts, width = spec.num_experts, spec.width
    router = torch.cat(
        [
            source.take(f"{prefix}gate.weight", (experts, hidden)).to(dtype),
            source.take(f"{prefix}shared_expert_gate.weight", (1, hidden)).to(dtype),
        ]
    )
    fused = f"{prefix}experts.gate_up_proj"
    if source.has(fused):
        gate_up = source.take(fused, (experts, 2 * width, hidden)).to(dtype)
        down = source.take(f"{prefix}experts.down_proj", (experts, hidden, width)).to(dtype)
    else:
        # Filled expert by expert, so that no more than one of them is held twice.
        gate_up = torch.empty((experts, 2 * width, hidden), dtype=dtype)
        down = torch.empty((experts, hidden, width), dtype=dtype)
        for expert in range(experts):
            one = read_mlp(
                source, f"{prefix}experts.{expert}.", DenseSpec(width=width), hidden, dtype
            )
            if one.down.device.type != "meta":
                gate_up[expert] = one.gate_up
                down[expert] = one.down
    shared = DenseSpec(width=spec.shared_width)
    return MoeTensors(
        router=router,
        gate_up=gate_up,
        down=down,
        shared=read_mlp(source, f"{prefix}shared_expert.", shared, hidden, dtype),
    )
