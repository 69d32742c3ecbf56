"""Config fields that change the arithmetic are understood or refused by name."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tiny_models import qwen3_5_config, qwen3_5_moe_config, qwen3_next_config
from twinpool.errors import UnsupportedModelError
from twinpool.models import config as config_module
from twinpool.models.config import DenseSpec, MoeSpec, parse_config
from twinpool.spec.families import FAMILIES, SERVED


def _next(**changes: Any) -> dict[str, Any]:
    return {**qwen3_next_config().to_diff_dict(), "layer_types": None, **changes}


def _dense(**changes: Any) -> dict[str, Any]:
    return {**qwen3_5_config().to_diff_dict(), **changes}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("attn_output_gate", False),
        ("sliding_window", 4096),
        ("quantization_config", {"quant_method": "fp8"}),
        ("mamba_ssm_dtype", "bfloat16"),
        ("mamba_ssm_dtype", "float16"),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", float("nan")),
        ("partial_rotary_factor", 1.5),
        ("partial_rotary_factor", 0.01),
        ("eos_token_id", ["<end>"]),
        ("eos_token_id", -3),
    ],
)
def test_a_value_that_is_not_understood_is_refused_by_name(field: str, value: object) -> None:
    config = _dense(**{field: value})
    if field == "partial_rotary_factor":
        del config["rope_parameters"]
    with pytest.raises(UnsupportedModelError, match=field):
        parse_config(config)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "factor": 4.0},
        {"type": "linear", "factor": 2.0},
        {"rope_type": "default", "attention_factor": 2.0},
    ],
)
@pytest.mark.parametrize("field", ["rope_parameters", "rope_scaling"])
def test_scaled_positions_are_refused(field: str, rope: dict[str, Any]) -> None:
    config = _dense()
    del config["rope_parameters"]
    with pytest.raises(UnsupportedModelError, match="rope_parameters"):
        parse_config({**config, field: rope})


def test_rope_of_the_old_form_is_that_of_the_new_form() -> None:
    new = _dense(rope_parameters={"rope_theta": 5e6, "partial_rotary_factor": 0.5})
    old = {**_dense(rope_theta=5e6, partial_rotary_factor=0.5, rope_scaling=None)}
    del old["rope_parameters"]
    assert parse_config(new).rotary == parse_config(old).rotary
    assert parse_config(new).rotary.width == 8


def test_rope_defaults_are_those_of_transformers() -> None:
    config = _dense()
    del config["rope_parameters"]
    rotary = parse_config(config).rotary
    assert (rotary.theta, rotary.width) == (10000.0, 4)


def test_an_expert_count_decides_which_layers_are_sparse() -> None:
    sparse = MoeSpec(num_experts=6, num_chosen=2, width=24, shared_width=40, is_normalised=True)
    dense = DenseSpec(width=72)
    assert parse_config(_next()).mlps == (sparse,) * 4
    assert parse_config(_next(decoder_sparse_step=2)).mlps == (dense, sparse) * 2
    assert parse_config(_next(mlp_only_layers=[2])).mlps == (sparse, sparse, dense, sparse)
    assert parse_config(_next(num_experts=0)).mlps == (dense,) * 4


def test_more_chosen_experts_than_there_are_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="num_experts_per_tok is 7"):
        parse_config(_next(num_experts_per_tok=7))


@pytest.mark.parametrize(
    "changes", [{"mlp_only_layers": [0]}, {"norm_topk_prob": False}, {"decoder_sparse_step": 2}]
)
def test_fields_that_this_family_would_ignore_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError):
        parse_config({**qwen3_5_moe_config().to_diff_dict(), **changes})


def test_nested_fields_are_named_with_their_place() -> None:
    config = {"model_type": "qwen3_5", "text_config": _dense(hidden_act="relu")}
    with pytest.raises(UnsupportedModelError, match=r"text_config\.hidden_act"):
        parse_config(config)


def test_fields_that_nobody_knows_are_told_and_not_silently_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        parse_config(_dense(logit_softcap=30.0))
    assert "logit_softcap" in caplog.text
    caplog.clear()
    parse_config({**qwen3_5_config().to_dict(), "architectures": ["Qwen3_5ForCausalLM"]})
    assert caplog.text == ""


def test_served_families_are_those_that_size_names() -> None:
    assert tuple(config_module._FAMILIES) == SERVED
    assert set(SERVED) <= set(FAMILIES)
