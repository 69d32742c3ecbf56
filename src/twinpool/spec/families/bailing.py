"""Ling and Ring hybrids (`bailing_hybrid`): KDA or lightning attention, and latent attention.

Knows the config's fields only. The third generation has Kimi Delta Attention, the one before it
lightning attention, under the same model type.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import FULL, LINEAR, either_integer, read_mla
from twinpool.spec.families.experts import ExpertFields, read_dense_then_sparse
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.layer import (
    FeedForwardSpec,
    KimiDeltaSpec,
    LayerSpec,
    LightningSpec,
    LinearSpec,
)

_CONV_FIELDS = ("short_conv_kernel_size", "linear_conv_kernel_dim")
_WIDTH_FIELDS = ("linear_head_dim", "head_dim")
_EXPERTS = ExpertFields(
    routed=("num_experts", "num_local_experts"),
    taken=("num_experts_per_token", "num_experts_per_tok"),
    shared=("num_shared_experts", "n_shared_experts"),
)


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a Bailing hybrid: the last of each group has full attention.

    Args:
        config: The model's fields.

    Returns:
        One spec per layer, first to last.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `BailingHybridConfig` (KDA); the reference engine's
    `BailingHybridConfig` for lightning attention.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    kinds = config.names("layer_types", known=(LINEAR, FULL), count=count)
    if kinds is None:
        group = config.integer("layer_group_size")
        kinds = tuple(LINEAR if (index + 1) % group else FULL for index in range(count))
    has_delta = _has_delta(config)
    # Only the third generation gates the output of its latent attention, by one value per head.
    full = read_mla(config, gate_width=1 if has_delta else 0)
    linear = _read_linear(config, has_delta=has_delta)
    return tuple(full if kind == FULL else linear for kind in kinds)


def _has_delta(config: ConfigReader) -> bool:
    """Tell KDA from lightning attention: a short conv, or no trace of lightning's output norm."""
    has_conv = config.has_any(_CONV_FIELDS)
    has_delta = config.boolean("use_kda", default=has_conv or not config.has("group_norm_size"))
    if has_conv and not has_delta:
        raise config.error("use_kda", "is False, but lightning attention has no short conv")
    return has_delta


def _read_linear(config: ConfigReader, *, has_delta: bool) -> LinearSpec:
    heads = (
        config.integer("linear_num_heads")
        if config.has("linear_num_heads")
        else config.integer("num_attention_heads")
    )
    # A config that transformers wrote has the rotated width in `head_dim`, and this one beside it.
    width = config.integer(next((name for name in _WIDTH_FIELDS if config.has(name)), "head_dim"))
    if not has_delta:
        return LightningSpec(num_heads=heads, width=width)
    return KimiDeltaSpec(
        num_heads=heads,
        width=width,
        conv_width=either_integer(config, *_CONV_FIELDS),
        num_full_gates=2 if config.boolean("no_kda_lora", default=True) else 0,
    )


def read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards: dense first, then experts.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.
    """
    return read_dense_then_sparse(config, layers, _EXPERTS.read(config))


BAILING_HYBRID = Family(
    model_type="bailing_hybrid",
    architecture="BailingHybridForCausalLM",
    defaults={
        "vocab_size": 157184,
        "hidden_size": 2560,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 42,
        "num_attention_heads": 32,
        "num_shared_experts": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "num_experts_per_token": 8,
        "first_k_dense_replace": 2,
        "model_max_length": 262144,
        "num_experts": 512,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "layer_group_size": 6,
    },
    read_layers=read_layers,
    read_feed_forwards=read_feed_forwards,
    context_fields=("model_max_length", "max_position_embeddings"),
    draft_fields=("num_nextn_predict_layers", "num_mtp_layers"),
)
