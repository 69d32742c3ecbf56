"""Qwen3.5, dense and MoE: Qwen3-Next's layers, alone or nested below a vision-language config.

Knows the config's fields only; the vision part is not read.
"""

from __future__ import annotations

from twinpool.spec.families.family import Family
from twinpool.spec.families.qwen3_next import (
    LAYER_DEFAULTS,
    read_dense,
    read_experts,
    read_layers,
)

_DENSE_DEFAULTS: dict[str, object] = {
    **LAYER_DEFAULTS,
    "vocab_size": 248320,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 12288,
    "num_key_value_heads": 4,
}
_MOE_DEFAULTS: dict[str, object] = {
    **LAYER_DEFAULTS,
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 2,
}

QWEN3_5_TEXT = Family(
    model_type="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    defaults=_DENSE_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_dense,
)
QWEN3_5 = Family(
    model_type="qwen3_5",
    architecture="Qwen3_5ForConditionalGeneration",
    defaults=_DENSE_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_dense,
    text_key="text_config",
    text_types=("qwen3_5_text",),
)
QWEN3_5_MOE_TEXT = Family(
    model_type="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    defaults=_MOE_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_experts,
)
QWEN3_5_MOE = Family(
    model_type="qwen3_5_moe",
    architecture="Qwen3_5MoeForConditionalGeneration",
    defaults=_MOE_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_experts,
    text_key="text_config",
    text_types=("qwen3_5_moe_text",),
)
