"""Published boot logs and worked values come out to the printed digit."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from twinpool.memory.boot_log import kv_line, state_line
from twinpool.memory.running_cap import running_cap, slots_per_request
from twinpool.memory.sizing import (
    Budget,
    balanced_ratio,
    format_ratio,
    parse_ratio,
    split_by_ratio,
    split_pinned,
)
from twinpool.spec.geometry import Geometry, geometry_of
from twinpool.spec.model import parse_model_spec, read_model_spec
from twinpool.units import DType

DATA = Path(__file__).parents[1] / "data"
CASES: dict[str, Any] = json.loads((DATA / "sizing_cases.json").read_text())
GLM = CASES["glm-5.3-flash, TP 2, fp8 latent KV"]
GLM_ROWS = {row["state_slots"]: row for row in GLM["rows"]}
GLM_GEOMETRY = Geometry(
    key_bytes=GLM["kv_bytes_per_token"]["value"],
    value_bytes=0,
    conv_bytes=34 * 3 * 3 * 32 * 128 * 2,
    recurrent_bytes=34 * 32 * 128 * 128 * 4,
    kv_dtype=DType.FP8,
    conv_dtype=DType.BFLOAT16,
    state_dtype=DType.FLOAT32,
    tp=2,
    num_full_layers=11,
    num_linear_layers=34,
)


def _glm_budget(strategy: str) -> Budget:
    return Budget(
        rest_bytes=GLM["rest_bytes_static_pools"],
        page_size=64,
        slots_per_request=slots_per_request(strategy),
    )


def test_every_published_row_is_covered() -> None:
    assert sorted(GLM_ROWS) == [192, 300, 429]


def test_published_slot_bytes() -> None:
    assert GLM_GEOMETRY.slot_bytes == GLM["state_bytes_per_slot"]["value"]


def test_published_boot_log_at_ratio_0_9() -> None:
    row = GLM_ROWS[429]
    pools = split_by_ratio(GLM_GEOMETRY, _glm_budget(row["strategy"]), parse_ratio("0.9"))
    assert pools.state_slots == row["state_slots"]
    assert pools.kv_tokens == row["kv_tokens"]
    assert pools.page_size == row["page"]
    assert pools.slots_per_request == row["slots_per_request"]
    assert f"conv_state size: {row['conv_GiB']}GB" in state_line(pools)
    assert f"ssm_state size: {row['ssm_GiB']}GB" in state_line(pools)
    assert f"KV size: {row['kv_GiB']} GB" in kv_line(pools)
    assert running_cap(pools, 256).value == row["max_running_requests"]


@pytest.mark.parametrize("slots", [300, 192])
def test_published_table_of_pinned_slots(slots: int) -> None:
    row = GLM_ROWS[slots]
    pools = split_pinned(GLM_GEOMETRY, _glm_budget(row["strategy"]), slots)
    assert f"{pools.kv_tokens / 1e6:.2f}" == row["kv_tokens_millions"]
    assert running_cap(pools, 256).value == row["max_running_requests"]


def test_published_model_default_starves_48_sessions() -> None:
    (default,) = (row for row in CASES["model_defaults"] if row["model"] == "GLM-5.3-Flash")
    budget = _glm_budget(default["mamba_radix_cache_strategy"])
    ratio = parse_ratio(default["mamba_full_memory_ratio"])
    pools = split_by_ratio(GLM_GEOMETRY, budget, ratio)
    assert (pools.state_slots, running_cap(pools, 256).value) == (180, 45)


def test_balanced_ratios() -> None:
    case = CASES["balanced ratio, one slot worth 4080 tokens, 5 slots per request"]
    printed = [
        format_ratio(balanced_ratio(Fraction(4080), context, slots_per_request=5))
        for context in case["average_context"]
    ]
    assert printed == case["ratio"]


@pytest.mark.parametrize("case", CASES["speculative inversion"]["cases"])
def test_speculative_inversion(case: dict[str, int]) -> None:
    slots, drafts = case["S"], case["D"]
    share = Fraction(case["C"] * slots + 1) * (1 + Fraction(drafts, slots)) + 1 + drafts
    geometry = GLM_GEOMETRY
    rest = 2 * share * geometry.slot_bytes
    budget = Budget(rest_bytes=int(rest), slots_per_request=slots, draft_tokens=drafts)
    assert split_by_ratio(geometry, budget, Fraction(1)).state_slots == case["slots"]


@pytest.mark.parametrize(
    ("case", "arguments"),
    [
        ("prefix cache off", {"strategy": "extra_buffer", "prefix_cache": False}),
        ("no_buffer", {"strategy": "no_buffer", "overlap": False}),
        ("extra_buffer, overlap", {"strategy": "extra_buffer"}),
        ("extra_buffer, no overlap", {"strategy": "extra_buffer", "overlap": False}),
        ("extra_buffer_lazy (needs overlap)", {"strategy": "extra_buffer_lazy"}),
    ],
)
def test_slots_per_request_table(case: str, arguments: dict[str, Any]) -> None:
    assert slots_per_request(**arguments) == CASES["slots_per_request"][case]


def test_worked_value_of_a_config_that_says_nothing_but_its_family() -> None:
    (case,) = (row for row in CASES["worked"] if row.get("model", "").startswith("Qwen3-Next"))
    geometry = geometry_of(parse_model_spec({"model_type": "qwen3_next", "dtype": "bfloat16"}))
    assert geometry.slot_bytes == case["state_bytes_per_slot"]
    assert geometry.row_bytes == case["kv_bytes_per_token_bf16"]


@pytest.mark.parametrize(
    "case",
    [row for row in CASES["worked"] if "config" in row],
    ids=lambda row: row["config"],
)
def test_worked_values_of_published_configs(case: dict[str, Any]) -> None:
    geometry = geometry_of(read_model_spec(DATA / case["config"]), tp=case["tp"])
    assert geometry.slot_bytes == case["state_bytes_per_slot"]
    assert geometry.row_bytes == case["kv_bytes_per_token_bf16"]
