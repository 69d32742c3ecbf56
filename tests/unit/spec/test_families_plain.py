"""Plain families have no state; a window that a model would use is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest

from twinpool.errors import UnsupportedModelError
from twinpool.spec.families.deepseek import LATENT_FAMILIES
from twinpool.spec.families.plain import PLAIN_FAMILIES
from twinpool.spec.families.plain_experts import PLAIN_EXPERT_FAMILIES
from twinpool.spec.geometry import geometry_of
from twinpool.spec.layer import MlaSpec
from twinpool.spec.model import ModelSpec, parse_model_spec
from twinpool.units import DType

NAMES = [
    family.model_type
    for family in (*PLAIN_FAMILIES, *PLAIN_EXPERT_FAMILIES, *LATENT_FAMILIES)
    if not family.text_key
]


def _spec(model_type: str, **fields: Any) -> ModelSpec:
    given: dict[str, Any] = {
        "dtype": "bfloat16",
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "sliding_window": None,
        "num_experts_per_tok": 2,
    }
    if model_type == "gpt_oss":
        given["layer_types"] = ["full_attention"] * 4
    return parse_model_spec({"model_type": model_type, **given, **fields})


@pytest.mark.parametrize("model_type", NAMES)
def test_plain_models_write_rows_in_every_layer_and_have_no_state(model_type: str) -> None:
    spec = _spec(model_type)
    assert spec.full_layers == (0, 1, 2, 3)
    assert spec.linear_layers == ()
    geometry = geometry_of(spec)
    assert geometry.slot_bytes == 0
    assert geometry.row_bytes > 0
    assert len(spec.feed_forwards) == 4


@pytest.mark.parametrize("model_type", NAMES)
def test_listed_windows_are_refused_in_every_family(model_type: str) -> None:
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(
        UnsupportedModelError, match=r"layer_types\[2\] is 'sliding_attention'"
    ) as e:
        _spec(model_type, layer_types=kinds)
    assert "pool of their own" in e.value.hint


@pytest.mark.parametrize("model_type", ["mistral", "ministral3", "mixtral", "phi3"])
def test_a_window_that_is_not_null_is_refused(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_window is 2048"):
        _spec(model_type, sliding_window=2048)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"])
def test_a_qwen_window_counts_only_when_it_is_switched_on(model_type: str) -> None:
    window = {"sliding_window": 2048, "max_window_layers": 2}
    assert _spec(model_type, **window).full_layers == (0, 1, 2, 3)
    assert _spec(model_type, use_sliding_window=True).full_layers == (0, 1, 2, 3)
    with pytest.raises(UnsupportedModelError, match="use_sliding_window is True, with a window of"):
        _spec(model_type, use_sliding_window=True, **window)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_a_switched_window_that_reaches_no_layer_is_plain(model_type: str) -> None:
    window = {"sliding_window": 2048, "use_sliding_window": True}
    assert _spec(model_type, max_window_layers=4, **window).linear_layers == ()
    listed = {"layer_types": ["full_attention"] * 4, "max_window_layers": 0}
    assert _spec(model_type, **listed, **window).linear_layers == ()


def test_llama_3_8b_by_hand() -> None:
    spec = parse_model_spec(
        {
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": 128256,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
        }
    )
    assert geometry_of(spec).row_bytes == 32 * 2 * 8 * 128 * 2
    assert geometry_of(spec, tp=8).row_bytes == 32 * 2 * 128 * 2
    assert geometry_of(spec, tp=16).row_bytes == 32 * 2 * 128 * 2
    assert spec.parameters == 8_029_995_008


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_deepseek_v3_rows_are_not_divided(tp: int) -> None:
    spec = parse_model_spec({"model_type": "deepseek_v3", "dtype": "bfloat16"})
    assert geometry_of(spec, tp=tp).row_bytes == 61 * 576 * 2


def test_deepseek_v32_rows_have_scales_and_an_index_key() -> None:
    spec = parse_model_spec({"model_type": "deepseek_v32", "dtype": "bfloat16"})
    assert geometry_of(spec, kv_dtype=DType.FP8).row_bytes == 61 * (656 + 132)
    assert geometry_of(spec).row_bytes == 61 * (1152 + 132)


def test_glm_5_layers_share_an_index_where_the_config_says_so() -> None:
    spec = _spec("glm_moe_dsa", indexer_types=["full", "shared", "shared", "full"])
    layers = [layer for layer in spec.layers if isinstance(layer, MlaSpec) and layer.indexer]
    assert [layer.indexer.has_cache for layer in layers if layer.indexer] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("inner", ["kimi_k2", "deepseek_v3"])
def test_kimi_k25_is_read_below_its_text_config(inner: str) -> None:
    text = {"model_type": inner, "num_attention_heads": 64, "n_routed_experts": 384}
    spec = parse_model_spec({"model_type": "kimi_k25", "dtype": "bfloat16", "text_config": text})
    assert geometry_of(spec).row_bytes == 61 * 576 * 2
    assert spec.feed_forwards[-1].num_experts == 384


def test_experts_under_either_name_are_read_and_a_contradiction_is_refused() -> None:
    assert _spec("qwen3_moe", num_local_experts=8).feed_forwards[0].num_experts == 8
    assert _spec("qwen3_moe", num_experts=8).feed_forwards[0].num_experts == 8
    with pytest.raises(UnsupportedModelError, match="num_local_experts is 9, but num_experts is 8"):
        _spec("qwen3_moe", num_experts=8, num_local_experts=9)


def test_qwen_experts_may_stand_in_some_layers_only() -> None:
    spec = _spec("qwen2_moe", decoder_sparse_step=2, mlp_only_layers=[3])
    assert [bool(ff.num_experts) for ff in spec.feed_forwards] == [False, True, False, False]
    assert spec.feed_forwards[1].dense_width == 5632


@pytest.mark.parametrize(
    ("model_type", "field", "count"),
    [
        ("deepseek_v3", "num_nextn_predict_layers", 1),
        ("deepseek_v3", "num_mtp_layers", 2),
        ("minimax_m2", "num_mtp_modules", 3),
    ],
)
def test_draft_layers_are_counted(model_type: str, field: str, count: int) -> None:
    assert len(_spec(model_type, **{field: count}).draft_layers) == count
