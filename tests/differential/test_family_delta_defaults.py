"""Absent fields of these families mean what they mean in transformers."""

from __future__ import annotations

from typing import Any

import pytest

from delta_families import TINY, config_of
from twinpool.errors import UnsupportedModelError
from twinpool.spec.families import FAMILIES
from twinpool.spec.model import ModelSpec, parse_model_spec

NESTED = ("glm5_next", "kimi_k25", "lfm2_vl")
# What the classes' own defaults leave out, or what of them cannot be sized.
UNUSABLE = {
    "deepseek_v2": "num_experts_per_tok is missing",
    "glm4_moe": "num_attention_heads is 96, which does not divide hidden_size 4096",
    "lfm2_moe": "layer_types is missing",
    "mistral": "sliding_window is 4096",
}
GIVEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "mistral": {"sliding_window": None},
}


def _compare(ours: ModelSpec, theirs: ModelSpec) -> None:
    assert ours.layers == theirs.layers
    assert ours.feed_forwards == theirs.feed_forwards
    assert (ours.hidden_size, ours.vocab_size) == (theirs.hidden_size, theirs.vocab_size)
    assert ours.context_length == theirs.context_length
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings


@pytest.mark.parametrize("model_type", sorted(TINY))
def test_absent_fields_are_the_classes_defaults(model_type: str) -> None:
    given = GIVEN.get(model_type, {})
    saved = config_of(model_type, given).to_dict()
    _compare(parse_model_spec({"model_type": model_type, **given}), parse_model_spec(saved))


@pytest.mark.parametrize("model_type", NESTED)
def test_absent_fields_of_nested_configs_are_the_classes_defaults(model_type: str) -> None:
    saved = config_of(model_type, {}).to_dict()
    ours = parse_model_spec({"model_type": model_type, "text_config": {}})
    _compare(ours, parse_model_spec(saved))


@pytest.mark.parametrize(("model_type", "says"), sorted(UNUSABLE.items()))
def test_defaults_that_cannot_be_sized_are_refused_by_field(model_type: str, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        parse_model_spec({"model_type": model_type})


@pytest.mark.parametrize("model_type", ["gpt_oss", "inkling_text"])
def test_windows_of_the_classes_defaults_are_refused(model_type: str) -> None:
    saved = config_of(model_type, {}).to_dict()
    with pytest.raises(UnsupportedModelError, match=r"layer_types\[\d+\] is '[a-z_]*sliding"):
        parse_model_spec(saved)
    with pytest.raises(UnsupportedModelError, match="layer_types is "):
        parse_model_spec({"model_type": model_type})


@pytest.mark.parametrize("model_type", sorted({*TINY, *NESTED}))
def test_every_field_with_a_default_is_one_of_the_class(model_type: str) -> None:
    """No default stands under a misspelt name; the published layouts' own fields are listed."""
    saved = config_of(model_type, {}).to_dict()
    known = {**saved, **saved.get("text_config", {})}
    own = {"first_k_dense_replace", "shared_expert_intermediate_size", "tie_word_embeddings"}
    own |= {"num_experts"} if model_type == "qwen3_moe" else set()
    assert set(FAMILIES[model_type].defaults) <= set(known) | own
