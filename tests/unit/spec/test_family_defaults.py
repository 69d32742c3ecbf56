"""Absent config fields mean what they mean in transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config, Qwen3_5TextConfig
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import (
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
)
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

from twinpool.spec.families import FAMILIES
from twinpool.spec.layer import GatedDeltaSpec, GqaSpec
from twinpool.spec.model import ModelSpec, parse_model_spec

CLASSES: dict[str, Any] = {
    "qwen3_next": Qwen3NextConfig,
    "qwen3_5": Qwen3_5Config,
    "qwen3_5_text": Qwen3_5TextConfig,
    "qwen3_5_moe": Qwen3_5MoeConfig,
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig,
}


def _by_transformers(model_type: str, **fields: Any) -> Any:
    kind = CLASSES[model_type]
    return kind(text_config=fields).text_config if _nested(model_type) else kind(**fields)


def _by_twinpool(model_type: str, **fields: Any) -> ModelSpec:
    nested = {"text_config": fields} if _nested(model_type) else fields
    return parse_model_spec({"model_type": model_type, **nested})


def _nested(model_type: str) -> bool:
    return bool(FAMILIES[model_type].text_key)


def test_every_family_is_compared() -> None:
    assert set(CLASSES) == {name for name in FAMILIES if name.startswith(("qwen3_next", "qwen3_5"))}


@pytest.mark.parametrize("model_type", sorted(CLASSES))
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_hidden_layers": 7, "full_attention_interval": 3},
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]},
        {"num_hidden_layers": 4, "head_dim": 64, "num_key_value_heads": 1, "vocab_size": 99},
    ],
)
def test_absent_fields_are_what_transformers_says(model_type: str, fields: dict[str, Any]) -> None:
    config = _by_transformers(model_type, **fields)
    spec = _by_twinpool(model_type, **fields)
    full = GqaSpec(
        num_query_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        key_width=config.head_dim,
        value_width=config.head_dim,
        is_gated=True,
    )
    linear = GatedDeltaSpec(
        num_key_heads=config.linear_num_key_heads,
        num_value_heads=config.linear_num_value_heads,
        key_width=config.linear_key_head_dim,
        value_width=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
    )
    kinds = {"full_attention": full, "linear_attention": linear}
    assert spec.layers == tuple(kinds[kind] for kind in config.layer_types)
    assert spec.hidden_size == config.hidden_size
    assert spec.vocab_size == config.vocab_size
    assert spec.context_length == config.max_position_embeddings
    assert spec.tie_word_embeddings == config.tie_word_embeddings


@pytest.mark.parametrize("model_type", sorted(CLASSES))
def test_a_saved_config_reads_back_the_same(model_type: str) -> None:
    saved = CLASSES[model_type](dtype="bfloat16").to_dict()
    nested = saved.get("text_config")
    if nested is not None:
        nested["dtype"] = "bfloat16"
    spec = parse_model_spec(saved)
    assert spec == parse_model_spec(
        {"model_type": model_type, "dtype": "bfloat16", "text_config": {}}
        if nested is not None
        else {"model_type": model_type, "dtype": "bfloat16"}
    )
