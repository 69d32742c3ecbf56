"""Granite 4: Mamba2 and full attention by a list of kinds, experts beside a shared feed-forward.

Knows the config's fields only. Its small variants have no Mamba layer, or no experts.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import FULL, LINEAR, read_gqa
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.mamba_blocks import (
    MIXER_WORDS,
    read_kinds,
    read_mamba2,
)
from twinpool.spec.layer import FeedForwardSpec, LayerSpec

_KIND_FIELDS = ("layer_types", "layers_block_type")


def _read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Source: transformers 5.24, `GraniteMoeHybridConfig`; without a list all layers are Mamba2."""
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    kinds = read_kinds(config, _KIND_FIELDS, MIXER_WORDS, count=count)
    if kinds is None:
        config.assume(_KIND_FIELDS[0])
        kinds = (LINEAR,) * count
    mixers: dict[str, LayerSpec] = {}
    if FULL in kinds:
        mixers[FULL] = read_gqa(config)
    if LINEAR in kinds:
        inner = config.integer("mamba_expand") * config.integer("hidden_size")
        mixers[LINEAR] = read_mamba2(config, inner_size=inner)
    return tuple(mixers[kind] for kind in kinds)


def _read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Source: transformers 5.24, `GraniteMoeHybridDecoderLayer`; 0 experts: dense alone."""
    experts = config.integer("num_local_experts", low=0)
    shared = config.integer("shared_intermediate_size")
    spec = FeedForwardSpec(dense_width=shared)
    if experts:
        spec = FeedForwardSpec(
            dense_width=shared,
            num_experts=experts,
            experts_per_token=config.integer("num_experts_per_tok", high=experts),
            expert_width=config.integer("intermediate_size"),
        )
    return (spec,) * len(layers)


GRANITE_HYBRID = Family(
    model_type="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "max_position_embeddings": 2048,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "mamba_n_heads": 128,
        "mamba_d_head": "auto",
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    read_layers=_read_layers,
    read_feed_forwards=_read_feed_forwards,
    draft_fields=(),
)
