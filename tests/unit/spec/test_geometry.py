"""Bytes of a row and a slot follow from the layers, the dtypes and the ranks."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest

from twinpool.errors import ConfigError
from twinpool.spec.geometry import Geometry, geometry_of
from twinpool.spec.layer import GatedDeltaSpec, GqaSpec, LayerSpec
from twinpool.spec.model import ModelSpec
from twinpool.units import DType

FULL = GqaSpec(num_query_heads=8, num_kv_heads=2, key_width=16, value_width=24)
LINEAR = GatedDeltaSpec(
    num_key_heads=4, num_value_heads=8, key_width=32, value_width=64, conv_width=4
)


def _spec(layers: tuple[LayerSpec, ...] = (LINEAR, LINEAR, FULL), **changes: object) -> ModelSpec:
    spec = ModelSpec(
        model_type="qwen3_next",
        architecture="Qwen3NextForCausalLM",
        layers=layers,
        hidden_size=64,
        vocab_size=100,
        context_length=128,
        dtype=DType.BFLOAT16,
    )
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]


def test_bytes_by_hand() -> None:
    geometry = geometry_of(_spec())
    assert geometry == Geometry(
        key_bytes=2 * 16 * 2,
        value_bytes=2 * 24 * 2,
        conv_bytes=2 * (2 * 4 * 32 + 8 * 64) * 3 * 2,
        recurrent_bytes=2 * 8 * 32 * 64 * 4,
        kv_dtype=DType.BFLOAT16,
        conv_dtype=DType.BFLOAT16,
        state_dtype=DType.FLOAT32,
        tp=1,
        num_full_layers=1,
        num_linear_layers=2,
    )
    assert geometry.row_bytes == 160
    assert geometry.slot_bytes == 9216 + 131072
    assert geometry.token_equiv == Fraction(140288, 160)


def test_explicit_dtypes_win() -> None:
    geometry = geometry_of(
        _spec(), kv_dtype=DType.FP8, state_dtype=DType.BFLOAT16, conv_dtype=DType.FLOAT32
    )
    plain = geometry_of(_spec())
    assert geometry.row_bytes * 2 == plain.row_bytes
    assert geometry.recurrent_bytes * 2 == plain.recurrent_bytes
    assert geometry.conv_bytes == 2 * plain.conv_bytes


def test_conv_state_of_a_float32_model_is_lossless() -> None:
    assert geometry_of(_spec(dtype=DType.FLOAT32)).conv_dtype is DType.FLOAT32


def test_state_dtype_of_the_config_is_used() -> None:
    assert geometry_of(_spec(state_dtype=DType.FLOAT16)).state_dtype is DType.FLOAT16


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_states_are_split_over_ranks(tp: int) -> None:
    assert geometry_of(_spec(), tp=tp).slot_bytes * tp == geometry_of(_spec()).slot_bytes


def test_kv_heads_replicate_once_there_are_more_ranks() -> None:
    rows = {tp: geometry_of(_spec((FULL,)), tp=tp).row_bytes for tp in (1, 2, 4, 8)}
    assert rows == {1: 160, 2: 80, 4: 80, 8: 80}


@pytest.mark.parametrize(
    ("layer", "tp", "says"),
    [
        (FULL, 3, "num_attention_heads is 8"),
        (dataclasses.replace(FULL, num_query_heads=12, num_kv_heads=3), 2, "num_key_value_heads"),
        (dataclasses.replace(FULL, num_query_heads=12, num_kv_heads=3), 4, "num_key_value_heads"),
        (LINEAR, 8, "linear_num_key_heads is 4"),
        (dataclasses.replace(LINEAR, num_value_heads=12), 8, "linear_num_key_heads is 4"),
    ],
)
def test_ranks_that_do_not_divide_the_heads_are_refused(
    layer: LayerSpec, tp: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        geometry_of(_spec((layer,)), tp=tp)


@pytest.mark.parametrize("tp", [0, -1])
def test_no_rank_is_refused(tp: int) -> None:
    with pytest.raises(ConfigError, match="tensor parallel size"):
        geometry_of(_spec(), tp=tp)


def test_state_dtype_without_enough_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match="recurrent state dtype is fp8_e4m3"):
        geometry_of(_spec(), state_dtype=DType.FP8)
    with pytest.raises(ConfigError, match="conv state dtype is fp8_e4m3"):
        geometry_of(_spec(), conv_dtype=DType.FP8)


def test_plain_transformer_has_slots_of_no_bytes() -> None:
    geometry = geometry_of(_spec((FULL, FULL)))
    assert (geometry.slot_bytes, geometry.num_linear_layers) == (0, 0)
    assert geometry.token_equiv == 0


def test_model_without_rows_has_no_token_equivalent() -> None:
    with pytest.raises(ConfigError, match="no KV rows"):
        _ = geometry_of(_spec((LINEAR,))).token_equiv
