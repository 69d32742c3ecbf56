"""Families with delta rules, lightning attention and short convs: published layouts and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twinpool.errors import UnsupportedModelError
from twinpool.spec.families import FAMILIES, PREFERENCES
from twinpool.spec.geometry import geometry_of
from twinpool.spec.layer import (
    FeedForwardSpec,
    GqaSpec,
    IndexerSpec,
    KimiDeltaSpec,
    LightningSpec,
    MlaSpec,
    ShortConvSpec,
)
from twinpool.spec.model import ModelSpec, parse_model_spec, read_model_spec
from twinpool.units import DType

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
FULL_OF_48B = [4, 8, 12, 16, 20, 24, 27]
KIMI_48B: dict[str, Any] = {
    "model_type": "kimi_linear",
    "dtype": "bfloat16",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 72,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "model_max_length": 1048576,
    "vocab_size": 163840,
    "linear_attn_config": {
        "full_attn_layers": FULL_OF_48B,
        "kda_layers": [layer for layer in range(1, 28) if layer not in FULL_OF_48B],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}


def _kimi(**changes: Any) -> ModelSpec:
    return parse_model_spec({**KIMI_48B, **changes})


def _lists(**changes: Any) -> dict[str, Any]:
    return {**KIMI_48B["linear_attn_config"], **changes}


def test_glm_rows_and_slots_are_those_of_the_published_boot_log() -> None:
    spec = read_model_spec(CONFIGS / "zai-org--GLM-5.3-Flash.json")
    geometry = geometry_of(spec, tp=2, kv_dtype=DType.FP8, conv_dtype=DType.BFLOAT16)
    assert geometry.row_bytes == 11 * (512 + 33) == 5995
    assert geometry.slot_bytes == 34 * (73_728 + 2_097_152) == 73_809_920


def test_kimi_48b_as_published_has_seven_latent_and_twenty_delta_layers() -> None:
    spec = _kimi()
    latent = MlaSpec(
        num_query_heads=32, latent_width=512, rope_width=64, nope_width=128, value_width=128
    )
    delta = KimiDeltaSpec(num_heads=32, width=128, conv_width=4)
    assert spec.full_layers == tuple(layer - 1 for layer in FULL_OF_48B)
    assert {spec.layers[index] for index in spec.full_layers} == {latent}
    assert {spec.layers[index] for index in spec.linear_layers} == {delta}
    assert spec.context_length == 1048576
    assert 48.5e9 < spec.parameters < 49.5e9
    assert 3.0e9 < spec.active_parameters < 3.5e9


@pytest.mark.parametrize(("tp", "conv", "state"), [(1, 12288, 524288), (8, 1536, 65536)])
def test_kimi_48b_bytes_by_hand(tp: int, conv: int, state: int) -> None:
    geometry = geometry_of(_kimi(), tp=tp)
    assert geometry.row_bytes == 7 * 576 * 2
    assert geometry.slot_bytes == 20 * (3 * conv * 2 + state * 4)


def test_published_and_flat_layouts_of_kimi_give_the_same_layers() -> None:
    flat = {name: value for name, value in KIMI_48B.items() if name != "linear_attn_config"}
    kinds = [
        "full_attention" if layer in FULL_OF_48B else "linear_attention" for layer in range(1, 28)
    ]
    flat |= {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}
    assert parse_model_spec({**flat, "layer_types": kinds}).layers == _kimi().layers


def test_k3_is_read_below_its_text_config_with_gates_and_a_narrow_expert_stream() -> None:
    text = {name: value for name, value in KIMI_48B.items() if name != "model_type"}
    text |= {
        "mla_use_output_gate": True,
        "routed_expert_hidden_size": 1024,
        "linear_attn_config": _lists(use_full_rank_gate=True),
    }
    spec = parse_model_spec({"model_type": "kimi_k3", "text_config": text})
    latent, delta = spec.layers[3], spec.layers[0]
    assert isinstance(latent, MlaSpec)
    assert isinstance(delta, KimiDeltaSpec)
    assert (latent.gate_width, delta.num_full_gates) == (128, 1)
    assert spec.feed_forwards[0] == FeedForwardSpec(dense_width=9216)
    assert spec.feed_forwards[1].expert_input_width == 1024
    plain = _kimi().layers[3]
    assert isinstance(plain, MlaSpec)
    assert latent.parameters(2304) - plain.parameters(2304) == 2304 * 32 * 128
    assert geometry_of(spec).slot_bytes == geometry_of(_kimi()).slot_bytes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kda_layers": None}, "linear_attn_config.kda_layers is missing"),
        ({"full_attn_layers": None}, "linear_attn_config.full_attn_layers is missing"),
        ({"full_attn_layers": [*FULL_OF_48B, 1]}, "kda_layers names layer 1, which is named"),
        ({"full_attn_layers": FULL_OF_48B[:-1]}, "kda_layers leaves out layer 27 of 1 to 27"),
        ({"full_attn_layers": [0, *FULL_OF_48B]}, r"full_attn_layers\[0\] is 0"),
        ({"full_attn_layers": "4"}, "full_attn_layers is '4', not a list"),
        ({"num_heads": 0}, "linear_attn_config.num_heads is 0"),
        ({"use_full_rank_gate": 1}, "use_full_rank_gate is 1, not true or false"),
    ],
)
def test_faulty_published_lists_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        _kimi(linear_attn_config=_lists(**changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"linear_attn_config": [1]}, r"linear_attn_config is \[1\], not an object"),
        (
            {"layer_types": ["linear_attention"] * 27},
            r"layer_types\[3\] is 'linear_attention', but",
        ),
        ({"layer_types": ["mamba"] * 27}, r"layer_types\[0\] is 'mamba'"),
        ({"num_experts_per_tok": 4}, "num_experts_per_tok is 4, but num_experts_per_token is 8"),
        ({"num_experts_per_token": 300}, "num_experts_per_token is 300, more than the 256"),
        ({"num_experts": None}, "num_experts is None"),
        ({"moe_layer_freq": 0}, "moe_layer_freq is 0"),
        ({"mlp_layer_types": ["wide"] * 27}, r"mlp_layer_types\[0\] is 'wide'"),
        ({"kv_lora_rank": None}, "kv_lora_rank is None"),
    ],
)
def test_faulty_kimi_fields_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        _kimi(**changes)


def test_every_second_layer_may_be_dense() -> None:
    spec = _kimi(moe_layer_freq=2, first_k_dense_replace=3)
    sparse = [index for index, ff in enumerate(spec.feed_forwards) if ff.num_experts]
    assert sparse == list(range(4, 27, 2))


def _glm(**changes: Any) -> ModelSpec:
    return parse_model_spec({"model_type": "glm5_next_text", **changes})


def _indexer(spec: ModelSpec, index: int) -> IndexerSpec:
    layer = spec.layers[index]
    assert isinstance(layer, MlaSpec)
    assert layer.indexer is not None
    return layer.indexer


@pytest.mark.parametrize(("pool", "tokens"), [(16, 4), (4, 4), (8, 8), (1, 1)])
def test_glm_stores_one_index_key_per_pool_but_four_for_sixteen(pool: int, tokens: int) -> None:
    indexer = _indexer(_glm(index_kpool=pool), 3)
    assert indexer.tokens_per_key == tokens
    assert indexer.row_bytes == -(-132 // tokens)


def test_glm_layers_that_share_an_index_keep_none() -> None:
    kinds = ["full", "full", "full", "full", *["shared"] * 3, "shared"]
    spec = _glm(num_hidden_layers=8, indexer_types=kinds)
    assert [_indexer(spec, index).has_cache for index in spec.full_layers] == [True, False]
    own, shared = (spec.layers[index] for index in spec.full_layers)
    assert isinstance(own, MlaSpec)
    assert isinstance(shared, MlaSpec)
    assert own.key_bytes(1, DType.FP8) - shared.key_bytes(1, DType.FP8) == 33
    assert own.parameters(4096) > shared.parameters(4096)


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        ({"index_topk_pattern": "FFFFSSSS"}, True),
        ({"index_topk_pattern": "SSSFSSSF"}, False),
        ({"index_topk_freq": 4}, True),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 0}, False),
    ],
)
def test_glm_patterns_say_which_layers_share(changes: dict[str, Any], shares: bool) -> None:
    spec = _glm(num_hidden_layers=8, **changes)
    assert _indexer(spec, 7).has_cache is not shares


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"index_topk_pattern": "FS"}, "index_topk_pattern is 'FS', not a letter for each of 45"),
        ({"index_topk_pattern": "X" * 45}, "index_topk_pattern is 'XXX"),
        ({"indexer_types": ["full"]}, "indexer_types has 1 entries for 45 layers"),
        ({"index_kpool": 0}, "index_kpool is 0"),
        ({"layer_types": ["sliding_attention"] * 45}, r"layer_types\[0\] is 'sliding_attention'"),
    ],
)
def test_faulty_glm_fields_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        _glm(**changes)


def test_glm_lists_count_from_nought_and_a_flat_config_may_have_the_outer_type() -> None:
    lists = {
        "full_attn_layers": [1, 3],
        "kda_layers": [0, 2],
        "head_dim": 64,
        "num_heads": 16,
        "short_conv_kernel_size": 3,
    }
    fields = {"num_hidden_layers": 4, "linear_attn_config": lists}
    spec = _glm(**fields)
    assert spec.full_layers == (1, 3)
    assert spec.layers[0] == KimiDeltaSpec(num_heads=16, width=64, conv_width=3)
    flat = parse_model_spec({"model_type": "glm5_next", **fields})
    nested = parse_model_spec({"model_type": "glm5_next", "text_config": fields})
    assert flat.layers == nested.layers == spec.layers


@pytest.mark.parametrize("model_type", ["glm5_next", "glm5_next_text"])
def test_glm_prefers_a_small_ratio_and_says_what_for(model_type: str) -> None:
    family = FAMILIES[model_type]
    assert family.preferences == {
        "mamba_full_memory_ratio": "0.25",
        "mamba_radix_cache_strategy": "extra_buffer_lazy",
    }
    assert "multi-turn" in family.preference_note


def test_inkling_is_refused_but_its_preference_is_known() -> None:
    wanted = {"mamba_full_memory_ratio": "0.1"}
    assert PREFERENCES["inkling"].settings == wanted
    assert FAMILIES["inkling_mm_model"].preferences == wanted
    for text, says in (
        ({}, "text_config.layer_types is absent, which gives a sliding window to 55 of 66"),
        ({"local_layer_ids": [1, 2]}, "local_layer_ids gives a sliding window to 2 of 66"),
        ({"layer_types": ["hybrid", "hybrid_sliding"] * 33}, r"layer_types\[1\] is 'hybrid_slid"),
        ({"layer_types": ["hybrid"] * 66}, "conv_kernel_size asks for four convs"),
    ):
        with pytest.raises(UnsupportedModelError, match=says):
            parse_model_spec({"model_type": "inkling_mm_model", "text_config": text})


def test_ling_without_a_short_conv_has_lightning_attention() -> None:
    spec = parse_model_spec(
        {
            "model_type": "bailing_hybrid",
            "num_hidden_layers": 8,
            "num_attention_heads": 16,
            "layer_group_size": 4,
            "group_norm_size": 4,
        }
    )
    assert spec.full_layers == (3, 7)
    assert spec.layers[0] == LightningSpec(num_heads=16, width=128)
    geometry = geometry_of(spec)
    assert (geometry.conv_bytes, geometry.recurrent_bytes) == (0, 6 * 16 * 128 * 128 * 4)


@pytest.mark.parametrize(
    ("changes", "gates"),
    [
        ({}, 2),
        ({"group_norm_size": 1, "short_conv_kernel_size": 4}, 2),
        ({"no_kda_lora": False}, 0),
    ],
)
def test_ling_with_a_short_conv_has_delta_attention(changes: dict[str, Any], gates: int) -> None:
    layer = parse_model_spec({"model_type": "bailing_hybrid", **changes}).layers[0]
    assert layer == KimiDeltaSpec(num_heads=32, width=128, conv_width=4, num_full_gates=gates)


def test_ling_that_denies_its_short_conv_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="use_kda is False"):
        parse_model_spec(
            {"model_type": "bailing_hybrid", "use_kda": False, "short_conv_kernel_size": 4}
        )


@pytest.mark.parametrize("model_type", ["minimax", "minimax_text_01", "minimax_m1"])
def test_minimax_as_published_lists_numbers(model_type: str) -> None:
    config = {
        "model_type": model_type,
        "num_hidden_layers": 8,
        "hidden_size": 6144,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1],
        "shared_intermediate_size": 0,
    }
    spec = parse_model_spec(config)
    assert spec.layers[0] == LightningSpec(num_heads=64, width=128)
    assert spec.layers[7] == GqaSpec(
        num_query_heads=64, num_kv_heads=8, key_width=128, value_width=128
    )
    assert spec.linear_layers == tuple(range(7))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"attn_type_list": [0, 1]}, "attn_type_list has 2 entries for 32 layers"),
        ({"attn_type_list": [2] * 32}, r"attn_type_list\[0\] is 2"),
        (
            {"attn_type_list": [0] * 32, "layer_types": ["full_attention"] * 32},
            "attn_type_list names other layers",
        ),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5, which does not divide 32"),
        ({"num_attention_heads": 24, "num_key_value_heads": 8}, "num_attention_heads is 24"),
    ],
)
def test_faulty_minimax_fields_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        parse_model_spec({"model_type": "minimax", **changes})


def test_lfm2_slots_hold_convs_alone() -> None:
    spec = parse_model_spec(
        {"model_type": "lfm2", "num_hidden_layers": 4, "full_attn_idxs": [2], "hidden_size": 2048}
    )
    assert spec.layers[0] == ShortConvSpec(num_channels=2048, conv_width=3)
    geometry = geometry_of(spec, tp=2, conv_dtype=DType.BFLOAT16)
    assert (geometry.conv_bytes, geometry.recurrent_bytes) == (3 * 1024 * 2 * 2, 0)


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({"block_ff_dim": 12288}, 8192),
        ({"intermediate_size": 1, "block_ff_dim": 6656}, 4608),
        ({"block_ff_dim": 6912, "block_auto_adjust_ff_dim": False}, 6912),
        ({"block_ff_dim": 6656, "block_ffn_dim_multiplier": None}, 4437),
        ({"block_ff_dim": 6656, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 64}, 5824),
    ],
)
def test_lfm2_widths_are_cut_and_rounded_up(fields: dict[str, Any], width: int) -> None:
    spec = parse_model_spec({"model_type": "lfm2", **fields})
    assert spec.feed_forwards[0].dense_width == width


@pytest.mark.parametrize("factor", [0, -1.5, float("nan"), "1"])
def test_a_width_factor_that_is_no_positive_number_is_refused(factor: object) -> None:
    with pytest.raises(UnsupportedModelError, match="block_ffn_dim_multiplier is"):
        parse_model_spec({"model_type": "lfm2", "block_ffn_dim_multiplier": factor})


@pytest.mark.parametrize("field", ["tie_embedding", "tie_word_embeddings"])
def test_lfm2_heads_are_tied_unless_either_field_says_no(field: str) -> None:
    assert parse_model_spec({"model_type": "lfm2"}).tie_word_embeddings
    assert not parse_model_spec({"model_type": "lfm2", field: False}).tie_word_embeddings


def test_olmo_derives_its_heads_from_those_of_attention() -> None:
    spec = parse_model_spec({"model_type": "olmo_hybrid", "num_hidden_layers": 3})
    assert spec.full_layers == (2,)
    with pytest.raises(UnsupportedModelError, match="linear_num_value_heads is 40, not a multiple"):
        parse_model_spec({"model_type": "olmo_hybrid", "linear_num_value_heads": 40})
