"""Config files become model specs, or errors that name the field."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from twinpool.errors import ConfigError, UnsupportedModelError
from twinpool.spec.families import FAMILIES
from twinpool.spec.layer import GatedDeltaSpec, GqaSpec
from twinpool.spec.model import ModelSpec, parse_model_spec, read_model_spec
from twinpool.units import DType

CONFIGS = Path(__file__).parents[2] / "data" / "configs"

TINY: dict[str, Any] = {
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 1024,
    "dtype": "bfloat16",
}


def _config(model_type: str = "qwen3_next", **changes: Any) -> dict[str, Any]:
    text = {**TINY, **changes}
    if not FAMILIES[model_type].text_key:
        return {"model_type": model_type, **text}
    return {"model_type": model_type, "text_config": text}


@pytest.mark.parametrize(
    "model_type", [name for name in FAMILIES if name.startswith(("qwen3_next", "qwen3_5"))]
)
def test_every_family_reads_the_same_shapes(model_type: str) -> None:
    spec = parse_model_spec(_config(model_type))
    full = GqaSpec(num_query_heads=4, num_kv_heads=2, key_width=16, value_width=16, is_gated=True)
    linear = GatedDeltaSpec(
        num_key_heads=2, num_value_heads=4, key_width=8, value_width=16, conv_width=4
    )
    assert spec.layers == (linear, linear, linear, full) * 2
    assert spec.full_layers == (3, 7)
    assert spec.linear_layers == (0, 1, 2, 4, 5, 6)
    assert (spec.hidden_size, spec.vocab_size, spec.context_length) == (64, 512, 1024)
    assert (spec.dtype, spec.state_dtype) == (DType.BFLOAT16, DType.FLOAT32)
    assert spec.architecture == FAMILIES[model_type].architecture


def test_published_dense_config_is_read_whole() -> None:
    spec = read_model_spec(CONFIGS / "Qwen--Qwen3.5-27B.json")
    assert spec.architecture == "Qwen3_5ForConditionalGeneration"
    assert len(spec.layers) == 64
    assert spec.full_layers == tuple(range(3, 64, 4))
    assert spec.context_length == 262144
    assert spec.assumed == ()


def test_layer_types_beat_the_interval() -> None:
    kinds = ["full_attention", "linear_attention"] * 4
    spec = parse_model_spec(_config(layer_types=kinds, full_attention_interval=2))
    assert spec.full_layers == (0, 2, 4, 6)


def test_interval_is_used_without_layer_types() -> None:
    spec = parse_model_spec(_config(layer_types=None, full_attention_interval=2))
    assert spec.full_layers == (1, 3, 5, 7)


def test_plain_transformer_has_no_linear_layers() -> None:
    spec = parse_model_spec(_config(full_attention_interval=1))
    assert spec.linear_layers == ()
    assert len(spec.full_layers) == 8


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("place", ["inside", "outside"])
def test_dtype_is_found_under_both_names_inside_and_outside(key: str, place: str) -> None:
    config = _config("qwen3_5")
    del config["text_config"]["dtype"]
    (config["text_config"] if place == "inside" else config)[key] = "float16"
    assert parse_model_spec(config).dtype is DType.FLOAT16


def test_inner_dtype_beats_outer() -> None:
    config = _config("qwen3_5", dtype="float32")
    config["dtype"] = "bfloat16"
    assert parse_model_spec(config).dtype is DType.FLOAT32


def test_missing_dtype_is_float32_and_assumed() -> None:
    config = _config()
    del config["dtype"]
    spec = parse_model_spec(config)
    assert spec.dtype is DType.FLOAT32
    assert "dtype" in spec.assumed


def test_state_dtype_is_the_configs() -> None:
    spec = parse_model_spec(_config(mamba_ssm_dtype="bfloat16"))
    assert spec.state_dtype is DType.BFLOAT16


def test_absent_fields_are_assumed_and_listed() -> None:
    config = _config()
    del config["head_dim"]
    spec = parse_model_spec(config)
    assert spec.layers[3] == GqaSpec(
        num_query_heads=4, num_kv_heads=2, key_width=256, value_width=256, is_gated=True
    )
    assert "head_dim" in spec.assumed
    assert "hidden_size" not in spec.assumed


def test_assumed_fields_do_not_make_specs_differ() -> None:
    config = _config(head_dim=256)
    implicit = {name: value for name, value in config.items() if name != "head_dim"}
    assert parse_model_spec(config) == parse_model_spec(implicit)


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(None, None, False), (True, None, True), (None, True, True), (False, True, False)],
)
def test_tied_embeddings_of_the_outer_config_win(
    outer: bool | None, inner: bool | None, tied: bool
) -> None:
    config = _config("qwen3_5", tie_word_embeddings=inner)
    config["tie_word_embeddings"] = outer
    assert parse_model_spec(config).tie_word_embeddings is tied


def test_spec_is_frozen() -> None:
    spec = parse_model_spec(_config())
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.hidden_size = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": 8.0}, "num_hidden_layers is 8.0, not an integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, not an integer"),
        ({"num_hidden_layers": "8"}, "num_hidden_layers is '8', not an integer"),
        ({"head_dim": None}, "head_dim is None, not an integer"),
        ({"hidden_size": 10**40}, "hidden_size is"),
        ({"full_attention_interval": 0}, "full_attention_interval is 0"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention', not a list"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 8 layers"),
        ({"layer_types": ["full_attention"] * 7 + ["mamba"]}, "layer_types[7] is 'mamba'"),
        ({"layer_types": ["full_attention"] * 7 + [{}]}, "layer_types[7] is {}"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads is 3"),
        ({"dtype": "int4"}, "dtype is 'int4'"),
        ({"dtype": 16}, "dtype is 16"),
        ({"mamba_ssm_dtype": "fp8_e4m3"}, "mamba_ssm_dtype is 'fp8_e4m3'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"vocab_size": []}, "vocab_size is []"),
    ],
)
def test_a_field_that_is_not_understood_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        parse_model_spec(_config(**changes))
    assert f"config field {says}" in str(caught.value)
    with pytest.raises(UnsupportedModelError) as caught:
        parse_model_spec(_config("qwen3_5_moe", **changes))
    assert f"config field text_config.{says}" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "model_type is missing"),
        ({"model_type": 7}, "model_type is a int"),
        ({"model_type": "gpt2"}, "'gpt2', a family that is not supported"),
        ({"model_type": "qwen3_5"}, "text_config is missing"),
        ({"model_type": "qwen3_5", "text_config": []}, "text_config is a list"),
        (
            {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_moe_text"}},
            "text_config.model_type is 'qwen3_5_moe_text'",
        ),
        ({"model_type": "qwen3_next", "architectures": "X"}, "architectures is not a list"),
        ({"model_type": "qwen3_next", "architectures": [3]}, "architectures is not a list"),
    ],
)
def test_a_config_of_another_kind_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        parse_model_spec(config)
    assert says in str(caught.value)


def test_reading_changes_nothing() -> None:
    config = _config("qwen3_5")
    before = json.dumps(config)
    parse_model_spec(config)
    assert json.dumps(config) == before


class TestFiles:
    """What `read_model_spec` makes of a path."""

    def test_folder_and_file_give_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(_config()))
        by_folder: ModelSpec = read_model_spec(tmp_path)
        assert by_folder == read_model_spec(tmp_path / "config.json")

    def test_byte_order_mark_is_skipped(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("\ufeff" + json.dumps(_config()), "utf-8")
        assert read_model_spec(tmp_path).hidden_size == 64

    def test_missing_file_says_which(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"config\.json does not exist"):
            read_model_spec(tmp_path)
        with pytest.raises(ConfigError, match="nowhere does not exist"):
            read_model_spec(tmp_path / "nowhere")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b'{"model_type": ', r"config\.json:1:16 is not JSON"),
            (b"", r"config\.json:1:1 is not JSON"),
            (b"[1, 2]", "holds a JSON list, not an object"),
            (b"\xff\xfe\x00", "is not UTF-8 text"),
            (b"[" * 100_000, "too deep"),
            (b'{"a": ' + b"9" * 10_000 + b"}", "too long"),
        ],
    )
    def test_what_is_not_a_json_object_is_refused(
        self, content: bytes, says: str, tmp_path: Path
    ) -> None:
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ConfigError, match=says):
            read_model_spec(tmp_path)
