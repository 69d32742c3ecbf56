"""MiniMax-Text-01 and M1: lightning attention, and full attention in some layers.

Knows the config's fields only; MiniMax-M2 has no linear layers and stands with the plain families.
"""

from __future__ import annotations

from dataclasses import replace

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import (
    FULL,
    LINEAR,
    read_gqa,
    read_head_width,
    refuse_listed_windows,
    refuse_window,
)
from twinpool.spec.families.experts import ExpertFields
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.layer import FeedForwardSpec, LayerSpec, LightningSpec

_EXPERTS = ExpertFields(
    routed=("num_local_experts", "num_experts"),
    taken=("num_experts_per_tok",),
    width="intermediate_size",
)


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a MiniMax config, published (`attn_type_list`) or in transformers' layout.

    Args:
        config: The model's fields.

    Returns:
        One spec per layer, first to last.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `MiniMaxConfig`; in `attn_type_list` 0 is lightning, 1 is full.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    refuse_window(config)
    full = read_gqa(config)
    linear = LightningSpec(
        num_heads=config.integer("num_attention_heads"), width=read_head_width(config)
    )
    return tuple(full if kind == FULL else linear for kind in _read_kinds(config, count))


def _read_kinds(config: ConfigReader, count: int) -> tuple[str, ...]:
    named = refuse_listed_windows(config, count, LINEAR, FULL)
    numbers = config.integers("attn_type_list", low=0, high=1)
    if numbers is not None and len(numbers) != count:
        raise config.error("attn_type_list", f"has {len(numbers)} entries for {count} layers")
    listed = None if numbers is None else tuple(FULL if full else LINEAR for full in numbers)
    if named and listed and named != listed:
        raise config.error("attn_type_list", "names other layers than layer_types")
    return named or listed or tuple(LINEAR if index % 2 else FULL for index in range(count))


def read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards: experts in every layer, and a shared one where its width is given.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.
    """
    shared = config.optional_integer("shared_intermediate_size", low=0) or 0
    return (replace(_EXPERTS.read(config), dense_width=shared),) * len(layers)


_DEFAULTS: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}

MINIMAX, MINIMAX_TEXT_01, MINIMAX_M1 = (
    Family(
        model_type=model_type,
        architecture=architecture,
        defaults=_DEFAULTS,
        read_layers=read_layers,
        read_feed_forwards=read_feed_forwards,
    )
    for model_type, architecture in (
        ("minimax", "MiniMaxForCausalLM"),
        ("minimax_text_01", "MiniMaxText01ForCausalLM"),
        ("minimax_m1", "MiniMaxM1ForCausalLM"),
    )
)
