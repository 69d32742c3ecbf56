"""Families with Mamba: layers of published forms, and errors that name the field."""

from __future__ import annotations

from typing import Any

import pytest

from twinpool.errors import UnsupportedModelError
from twinpool.spec.geometry import geometry_of
from twinpool.spec.layer import (
    BothSpec,
    FeedForwardSpec,
    GqaSpec,
    Mamba1Spec,
    Mamba2Spec,
    NoMixerSpec,
)
from twinpool.spec.model import ModelSpec, parse_model_spec
from twinpool.units import DType

NEMOTRON = {"model_type": "nemotron_h", "hidden_size": 64, "mamba_num_heads": 8}
PATTERN = "M*-E"
NAMES = ["mamba", "attention", "mlp", "moe"]
NEW_NAMES = ["linear_attention", "full_attention", "mlp", "moe"]
DRAFTS = {"hybrid_override_pattern": PATTERN, "num_nextn_predict_layers": 1}
NO_MIXER = NoMixerSpec()


def _layers(model_type: str, **fields: Any) -> tuple[Any, ...]:
    return _spec(model_type, **fields).layers


def _spec(model_type: str, **fields: Any) -> ModelSpec:
    return parse_model_spec({"model_type": model_type, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"hybrid_override_pattern": PATTERN},
        {"hybrid_override_pattern": PATTERN, "num_hidden_layers": 4},
        {"layers_block_type": NAMES},
        {"layer_types": NEW_NAMES},
        {"layers_block_type": NEW_NAMES, "hybrid_override_pattern": PATTERN},
        {"layers_block_type": NAMES, "layer_types": NEW_NAMES},
    ],
)
def test_nemotron_reads_patterns_and_lists_of_old_and_new_names(fields: dict[str, Any]) -> None:
    spec = parse_model_spec({**NEMOTRON, **fields})
    kinds = [type(layer) for layer in spec.layers]
    assert kinds == [Mamba2Spec, GqaSpec, NoMixerSpec, NoMixerSpec]
    assert [bool(ff.dense_width) for ff in spec.feed_forwards] == [False, False, True, True]
    assert [ff.num_experts for ff in spec.feed_forwards] == [0, 0, 0, 8]


def test_nemotron_takes_its_channels_from_heads_and_its_legacy_names() -> None:
    fields = {"mamba_head_dim": 10, "expand": 2, "mamba_n_groups": 4, "mamba_d_conv": 3}
    old = {"attention_head_dim": 24, "num_key_value_heads": None, "num_attention_heads": 2}
    mamba, attention = parse_model_spec(
        {**NEMOTRON, **fields, **old, "hybrid_override_pattern": "M*"}
    ).layers
    assert mamba == Mamba2Spec(
        num_heads=8, head_width=10, state_width=128, num_groups=4, conv_width=3
    )
    assert attention == GqaSpec(num_query_heads=2, num_kv_heads=2, key_width=24, value_width=24)


def test_nemotron_feed_forwards_have_no_gate_and_experts_may_be_narrow() -> None:
    _, _, dense, experts = parse_model_spec(
        {
            **NEMOTRON,
            "hybrid_override_pattern": PATTERN,
            "intermediate_size": 100,
            "n_routed_experts": 16,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 50,
            "moe_latent_size": 32,
        }
    ).feed_forwards
    assert dense == FeedForwardSpec(dense_width=100, is_gated=False)
    assert experts == FeedForwardSpec(
        dense_width=100,
        num_experts=16,
        experts_per_token=3,
        expert_width=40,
        is_gated=False,
        expert_input_width=32,
    )


@pytest.mark.parametrize(
    "model_type", ["NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3", "nemotron_h_omni"]
)
def test_nemotron_that_sees_nests_its_text_model(model_type: str) -> None:
    flat = {**NEMOTRON, "hybrid_override_pattern": PATTERN}
    nested = _spec(model_type, llm_config=flat, torch_dtype="bfloat16", vision_config={})
    assert nested.layers == parse_model_spec(flat).layers
    assert nested.dtype is DType.BFLOAT16


def test_nemotron_draft_layers_have_the_attention_of_the_model() -> None:
    spec = parse_model_spec({**NEMOTRON, **DRAFTS, "mtp_hybrid_override_pattern": "*E"})
    assert spec.draft_layers == (spec.layers[1],)
    assert parse_model_spec({**NEMOTRON, **DRAFTS}).draft_layers == (spec.layers[1],)


def test_granite_without_mamba_layers_has_no_state() -> None:
    spec = _spec("granitemoehybrid", num_hidden_layers=3, layer_types=["attention"] * 3)
    assert geometry_of(spec).slot_bytes == 0
    assert spec.full_layers == (0, 1, 2)


@pytest.mark.parametrize("field", ["layer_types", "layers_block_type"])
def test_granite_reads_its_list_under_both_names(field: str) -> None:
    layers = _layers("granitemoehybrid", num_hidden_layers=2, **{field: ["mamba", "attention"]})
    assert [type(layer) for layer in layers] == [Mamba2Spec, GqaSpec]


def test_granite_without_experts_keeps_the_shared_feed_forward() -> None:
    spec = _spec("granitemoehybrid", num_local_experts=0, shared_intermediate_size=77)
    assert set(spec.feed_forwards) == {FeedForwardSpec(dense_width=77)}


def test_bamba_has_attention_where_it_lists_it() -> None:
    spec = _spec("bamba", attn_layer_indices=[9, 18, 27])
    assert spec.full_layers == (9, 18, 27)
    assert len(spec.linear_layers) == 29
    assert spec.layers[0] == Mamba2Spec(
        num_heads=128, head_width=64, state_width=256, num_groups=1, conv_width=4
    )


@pytest.mark.parametrize(("channels", "width"), [(1024, 8), (None, 64)])
def test_falcon_h1_has_both_mixers_in_every_layer(channels: int | None, width: int) -> None:
    layers = _layers("falcon_h1", num_hidden_layers=2, head_dim=128, mamba_d_ssm=channels)
    assert layers == (layers[0],) * 2
    assert isinstance(layers[0], BothSpec)
    assert layers[0].full.row_elements() == 8 * 2 * 128
    assert layers[0].linear.recurrent_elements() == 128 * width * 256


def test_jamba_has_attention_and_experts_once_per_period() -> None:
    spec = _spec("jamba", num_hidden_layers=16)
    assert spec.full_layers == (4, 12)
    assert spec.layers[0] == Mamba1Spec(
        inner_size=8192, state_width=16, conv_width=4, step_rank=256
    )
    sparse = [index for index, ff in enumerate(spec.feed_forwards) if ff.num_experts]
    assert sparse == list(range(1, 16, 2))


def test_zamba2_attention_is_twice_as_wide_and_shared_weights_count_once() -> None:
    fields = {"num_hidden_layers": 6, "layers_block_type": ["mamba", "hybrid"] * 3}
    shared = _spec("zamba2", **fields, num_mem_blocks=1)
    apart = _spec("zamba2", **fields, num_mem_blocks=3)
    hybrid = shared.layers[1]
    assert isinstance(hybrid, BothSpec)
    assert hybrid.full.row_elements() == 2 * 2 * 2560
    assert hybrid.linear == shared.layers[0]
    block = 3 * 2560 * 10240 + 3 * 5120 * 5120 + 5120 * 2560
    assert apart.parameters - shared.parameters == 2 * block
    assert apart.active_parameters == shared.active_parameters


def test_pure_mamba_has_states_and_no_rows() -> None:
    geometry = geometry_of(_spec("mamba", dtype="bfloat16"))
    assert geometry.row_bytes == 0
    assert geometry.conv_bytes == 32 * 1536 * 3 * 2
    assert geometry.recurrent_bytes == 32 * 1536 * 16 * 4


def test_a_width_in_the_file_beats_the_expansion() -> None:
    (layer,) = _layers("falcon_mamba", num_hidden_layers=1, expand=16, intermediate_size=8192)
    assert layer.inner_size == 8192


@pytest.mark.parametrize(
    ("fields", "context"), [({}, 2048), ({"seq_length": 8192}, 8192), ({"max_seq_len": 9}, 9)]
)
def test_pure_mamba_takes_its_context_from_any_known_field(
    fields: dict[str, Any], context: int
) -> None:
    spec = _spec("mamba2", **fields)
    assert spec.context_length == context
    assert ("max_position_embeddings" in spec.assumed) == (not fields)


@pytest.mark.parametrize(
    ("model_type", "field"),
    [
        ("nemotron_h", "layers_block_type"),
        ("granitemoehybrid", "layer_types"),
        ("bamba", "attn_layer_indices"),
        ("zamba2", "layers_block_type"),
        ("zamba2", "intermediate_size"),
    ],
)
def test_a_layout_that_the_config_lacks_is_named_as_assumed(model_type: str, field: str) -> None:
    assert field in _spec(model_type).assumed


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("nemotron_h", {"hybrid_override_pattern": "M*x"}, r"hybrid_override_pattern\[2\]"),
    ("nemotron_h", {"hybrid_override_pattern": ""}, "hybrid_override_pattern"),
    ("nemotron_h", {"hybrid_override_pattern": 7}, "hybrid_override_pattern"),
    (
        "nemotron_h",
        {"hybrid_override_pattern": "M*", "num_hidden_layers": 3},
        "hybrid_override_pattern has 2 letters for 3",
    ),
    ("nemotron_h", {"layers_block_type": ["mamba", "conv"]}, r"layers_block_type\[1\]"),
    ("nemotron_h", {"layers_block_type": []}, "layers_block_type"),
    (
        "nemotron_h",
        {"layers_block_type": ["mamba"], "hybrid_override_pattern": "*"},
        "hybrid_override_pattern contradicts layers_block_type",
    ),
    ("nemotron_h", {"num_hidden_layers": 52}, "layers_block_type is missing"),
    ("nemotron_h", {"sliding_window": 4096}, "sliding_window"),
    ("nemotron_h", {"n_groups": 3}, "n_groups"),
    ("nemotron_h", {"n_groups": 8, "mamba_n_groups": 4}, "mamba_n_groups"),
    ("nemotron_h", {"head_dim": 64, "attention_head_dim": 128}, "attention_head_dim"),
    ("nemotron_h", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ("nemotron_h", {"num_key_value_heads": 5}, "num_key_value_heads"),
    ("nemotron_h", {**DRAFTS, "mtp_hybrid_override_pattern": "M*"}, "mtp_hybrid_override_pattern"),
    ("nemotron_h", {**DRAFTS, "mtp_layers_block_type": ["moe"]}, "mtp_layers_block_type"),
    ("granitemoehybrid", {"layer_types": ["mamba"]}, "layer_types has 1 entries for 32"),
    (
        "granitemoehybrid",
        {"num_hidden_layers": 1, "layer_types": ["mamba"], "layers_block_type": ["attention"]},
        "layers_block_type contradicts layer_types",
    ),
    ("granitemoehybrid", {"mamba_d_head": 32}, "mamba_d_head is 32"),
    ("granitemoehybrid", {"mamba_d_head": "wide"}, "mamba_d_head"),
    ("granitemoehybrid", {"mamba_n_heads": 100}, "mamba_n_heads"),
    ("granitemoehybrid", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ("bamba", {"attn_layer_indices": [32]}, r"attn_layer_indices\[0\]"),
    ("bamba", {"attn_layer_indices": [1], "num_attention_heads": 3}, "num_key_value_heads"),
    ("bamba", {"mamba_n_groups": 3}, "mamba_n_groups"),
    ("falcon_h1", {"mamba_d_head": 16}, "mamba_d_head is 16"),
    ("falcon_h1", {"mamba_d_ssm": 1000}, "mamba_n_heads"),
    ("jamba", {"attn_layer_offset": 8}, "attn_layer_offset"),
    ("jamba", {"expert_layer_offset": 2}, "expert_layer_offset"),
    ("jamba", {"mamba_dt_rank": 0}, "mamba_dt_rank"),
    ("jamba", {"sliding_window": 4096}, "sliding_window"),
    ("zamba2", {"num_hidden_layers": 38}, "layers_block_type is missing"),
    ("zamba2", {"mamba_headdim": 64}, "mamba_headdim"),
    ("zamba2", {"attention_head_dim": 80}, "attention_head_dim"),
    ("zamba2", {"attention_hidden_size": 2560}, "attention_hidden_size"),
    ("zamba2", {"num_attention_heads": 33}, "num_attention_heads"),
    ("zamba2", {"num_key_value_heads": 5}, "num_key_value_heads"),
    ("zamba2", {"use_long_context": True}, "max_position_embeddings"),
    ("mamba2", {"head_dim": 32}, "head_dim"),
    ("mamba2", {"n_groups": 3}, "n_groups"),
    ("mamba", {"conv_kernel": 0}, "conv_kernel"),
    ("falcon_mamba", {"time_step_rank": 1.5}, "time_step_rank"),
]


@pytest.mark.parametrize(("model_type", "fields", "message"), REFUSED)
def test_a_field_that_does_not_fit_is_an_error_that_names_it(
    model_type: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"config field {message}"):
        _spec(model_type, **fields)


def test_a_nested_field_is_named_with_its_place() -> None:
    with pytest.raises(UnsupportedModelError, match=r"config field llm_config\.sliding_window"):
        _spec("NemotronH_Nano_VL_V2", llm_config={"sliding_window": 1})
