"""Falcon-H1: attention and Mamba2 side by side in every layer, all dense.

Knows the config's fields only.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import read_gqa
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.mamba_blocks import read_mamba2
from twinpool.spec.families.qwen3_next import read_dense
from twinpool.spec.layer import BothSpec, LayerSpec


def _read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Source: transformers 5.24, `FalconH1Config`; a null `mamba_d_ssm` means hidden x expand."""
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    inner = config.optional_integer("mamba_d_ssm")
    if inner is None:
        inner = config.integer("mamba_expand") * config.integer("hidden_size")
    both = BothSpec(full=read_gqa(config), linear=read_mamba2(config, inner_size=inner))
    return (both,) * count


FALCON_H1 = Family(
    model_type="falcon_h1",
    architecture="FalconH1ForCausalLM",
    defaults={
        "vocab_size": 128000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_head": "auto",
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    read_layers=_read_layers,
    read_feed_forwards=read_dense,
    draft_fields=(),
)
