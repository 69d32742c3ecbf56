"""Jamba: Mamba-1 with full attention once per period, experts in every second layer.

Knows the config's fields only.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import read_gqa, refuse_window
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.layer import FeedForwardSpec, LayerSpec, Mamba1Spec

_RANK_DIVISOR = 16


def _read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Source: transformers 5.24, `JambaConfig.layers_block_type`."""
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    refuse_window(config)
    hidden = config.integer("hidden_size")
    full = _every(config, "attn_layer", count)
    mamba = Mamba1Spec(
        inner_size=config.integer("mamba_expand") * hidden,
        state_width=config.integer("mamba_d_state"),
        conv_width=config.integer("mamba_d_conv"),
        step_rank=config.integer_or_auto("mamba_dt_rank") or -(-hidden // _RANK_DIVISOR),
    )
    if not any(full):
        return (mamba,) * count
    attention = read_gqa(config)
    return tuple(attention if is_full else mamba for is_full in full)


def _read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Source: transformers 5.24, `JambaConfig.layers_num_experts`; one expert is a dense layer."""
    width = config.integer("intermediate_size")
    dense = FeedForwardSpec(dense_width=width)
    experts = config.integer("num_experts")
    if experts == 1:
        return (dense,) * len(layers)
    sparse = FeedForwardSpec(
        num_experts=experts,
        experts_per_token=config.integer("num_experts_per_tok", high=experts),
        expert_width=width,
    )
    chosen = _every(config, "expert_layer", len(layers))
    return tuple(sparse if is_sparse else dense for is_sparse in chosen)


def _every(config: ConfigReader, name: str, count: int) -> list[bool]:
    """Say of each layer whether it is the one of its period."""
    period = config.integer(f"{name}_period")
    offset = config.integer(f"{name}_offset", low=0)
    if offset >= period:
        raise config.error(f"{name}_offset", f"is {offset}, not below the period of {period}")
    return [index % period == offset for index in range(count)]


JAMBA = Family(
    model_type="jamba",
    architecture="JambaForCausalLM",
    defaults={
        "vocab_size": 65536,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "num_experts_per_tok": 2,
        "num_experts": 16,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
    },
    read_layers=_read_layers,
    read_feed_forwards=_read_feed_forwards,
    draft_fields=(),
)
