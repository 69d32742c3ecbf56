"""OLMo-hybrid: Gated DeltaNet, and full attention in every fourth layer.

Knows the config's fields only.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import FULL, LINEAR, read_gqa, refuse_listed_windows
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.qwen3_next import read_dense
from twinpool.spec.layer import GatedDeltaSpec, LayerSpec


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of an OLMo-hybrid config; without `layer_types`, every fourth is full.

    Args:
        config: The model's fields.

    Returns:
        One spec per layer, first to last.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `OlmoHybridConfig`. A model of fewer than four layers has its full
    attention in the last.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    kinds = refuse_listed_windows(config, count, LINEAR, FULL) or tuple(
        FULL if index % 4 == 3 or (count < 4 and index == count - 1) else LINEAR
        for index in range(count)
    )
    full, linear = read_gqa(config), _read_linear(config)
    return tuple(full if kind == FULL else linear for kind in kinds)


def _read_linear(config: ConfigReader) -> GatedDeltaSpec:
    """Read the linear layers: as many heads as attention has, keys 3/4 of their share wide."""
    heads = config.integer("num_attention_heads")
    key_heads = config.optional_integer("linear_num_key_heads") or heads
    value_heads = config.optional_integer("linear_num_value_heads") or heads
    if value_heads % key_heads:
        raise config.error(
            "linear_num_value_heads",
            f"is {value_heads}, not a multiple of the {key_heads} key heads",
        )
    hidden = config.integer("hidden_size")
    key_width = config.optional_integer("linear_key_head_dim") or 3 * hidden // (4 * key_heads)
    if not key_width:
        raise config.error("linear_key_head_dim", f"is missing, and hidden_size {hidden} gives 0")
    return GatedDeltaSpec(
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_width=key_width,
        value_width=config.optional_integer("linear_value_head_dim") or 2 * key_width,
        conv_width=config.integer("linear_conv_kernel_dim"),
    )


OLMO_HYBRID = Family(
    model_type="olmo_hybrid",
    architecture="OlmoHybridForCausalLM",
    defaults={
        "vocab_size": 100352,
        "hidden_size": 3840,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 30,
        "max_position_embeddings": 65536,
        "linear_conv_kernel_dim": 4,
    },
    read_layers=read_layers,
    read_feed_forwards=read_dense,
)
