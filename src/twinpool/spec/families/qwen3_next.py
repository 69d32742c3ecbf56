"""Qwen3-Next: gated full attention in every fourth layer, Gated DeltaNet in the others.

Knows the config's fields only; Qwen3.5 shares its layers.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.layer import FeedForwardSpec, GatedDeltaSpec, GqaSpec, LayerSpec

LINEAR = "linear_attention"
FULL = "full_attention"


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a Qwen3-Next or Qwen3.5 text config.

    Args:
        config: The text model's fields.

    Returns:
        One spec per layer, first to last.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `Qwen3NextConfig`, `Qwen3_5TextConfig`.
    """
    kinds = _layer_kinds(config)
    full, linear = _full_spec(config), _linear_spec(config)
    return tuple(full if kind == FULL else linear for kind in kinds)


def _layer_kinds(config: ConfigReader) -> tuple[str, ...]:
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    listed = config.names("layer_types", known=(LINEAR, FULL), count=count)
    if listed is not None:
        return listed
    interval = config.integer("full_attention_interval")
    return tuple(LINEAR if (index + 1) % interval else FULL for index in range(count))


def _full_spec(config: ConfigReader) -> GqaSpec:
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads")
    width = config.integer("head_dim")
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"is {kv_heads}, which does not divide {heads}")
    return GqaSpec(
        num_query_heads=heads,
        num_kv_heads=kv_heads,
        key_width=width,
        value_width=width,
        is_gated=True,
    )


def _linear_spec(config: ConfigReader) -> GatedDeltaSpec:
    key_heads = config.integer("linear_num_key_heads")
    value_heads = config.integer("linear_num_value_heads")
    if value_heads % key_heads:
        raise config.error(
            "linear_num_value_heads",
            f"is {value_heads}, not a multiple of the {key_heads} key heads",
        )
    return GatedDeltaSpec(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_width=config.integer("linear_key_head_dim"),
        value_width=config.integer("linear_value_head_dim"),
        conv_width=config.integer("linear_conv_kernel_dim"),
    )


def read_dense(config: ConfigReader, layers: tuple[LayerSpec, ...]) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards of a dense config: all alike.

    Raises:
        UnsupportedModelError: If the width is missing or no positive integer.
    """
    return (FeedForwardSpec(dense_width=config.integer("intermediate_size")),) * len(layers)


def read_experts(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards of a mixture-of-experts config, some layers of which may be dense.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.

    Source: transformers 5.24, `Qwen3NextDecoderLayer`, `Qwen3NextSparseMoeBlock`.
    """
    count = len(layers)
    dense = set(config.integers("mlp_only_layers", low=0, high=MAX_LAYERS) or ())
    step = config.integer("decoder_sparse_step")
    experts = config.integer("num_experts", low=0)
    sparse = FeedForwardSpec(
        dense_width=config.integer("shared_expert_intermediate_size", low=0),
        num_experts=experts,
        experts_per_token=config.integer("num_experts_per_tok"),
        expert_width=config.integer("moe_intermediate_size"),
    )
    is_sparse = [
        bool(experts) and index not in dense and (index + 1) % step == 0 for index in range(count)
    ]
    if all(is_sparse):
        return (sparse,) * count
    plain = FeedForwardSpec(dense_width=config.integer("intermediate_size"))
    return tuple(sparse if chosen else plain for chosen in is_sparse)


LAYER_DEFAULTS: dict[str, object] = {
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_attention_heads": 16,
    "max_position_embeddings": 32768,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "intermediate_size": 5632,
}

QWEN3_NEXT = Family(
    model_type="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    defaults={
        **LAYER_DEFAULTS,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
    },
    read_layers=read_layers,
    read_feed_forwards=read_experts,
)
