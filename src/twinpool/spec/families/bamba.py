"""Bamba: Mamba2 in most layers, full attention in those that the config lists, all dense.

Knows the config's fields only.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import read_gqa
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.mamba_blocks import read_mamba2
from twinpool.spec.families.qwen3_next import read_dense
from twinpool.spec.layer import LayerSpec


def _read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Source: transformers 5.24, `BambaConfig.layers_block_type`."""
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    listed = config.integers("attn_layer_indices", low=0, high=count - 1)
    if listed is None:
        config.assume("attn_layer_indices")
    full = set(listed or ())
    attention = read_gqa(config) if full else None
    mamba = None
    if len(full) < count:
        inner = config.integer("mamba_expand") * config.integer("hidden_size")
        mamba = read_mamba2(config, inner_size=inner)
    chosen = (attention if index in full else mamba for index in range(count))
    return tuple(layer for layer in chosen if layer is not None)


BAMBA = Family(
    model_type="bamba",
    architecture="BambaForCausalLM",
    defaults={
        "vocab_size": 128000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
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
