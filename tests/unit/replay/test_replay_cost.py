"""Step costs grow with what a step does, and say where their numbers come from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinpool.errors import ConfigError
from twinpool.replay.cost import GivenRates, Roofline, Span
from twinpool.settings.values import Source
from twinpool.spec.catalog import find_model
from twinpool.spec.geometry import geometry_of
from twinpool.spec.hardware import find_hardware
from twinpool.spec.model import parse_model_spec

MODELS = ("Qwen3.5-27B", "Qwen3.5-35B-A3B", "GLM-5.3-Flash", "falcon-mamba-7b", "Llama-3.1-8B")


def roofline(model: str, tp: int = 1) -> Roofline:
    spec = parse_model_spec(find_model(model).config)
    return Roofline(
        spec=spec,
        geometry=geometry_of(spec, tp=tp),
        hardware=find_hardware("H200"),
        weight_itemsize=2.0,
    )


@pytest.mark.parametrize("model", MODELS)
def test_decode_reads_weights_states_and_rows(model: str) -> None:
    cost = roofline(model)
    one, many = cost.decode_s(1, 1000), cost.decode_s(32, 32_000)
    assert 0 < one < many < 32 * one
    assert cost.decode_s(0, 0) == 0.0
    longer = cost.decode_s(1, 1_000_000)
    assert longer > one if cost.geometry.row_bytes else longer == one


@pytest.mark.parametrize("model", MODELS)
def test_prefill_has_a_quadratic_part_where_there_is_attention(model: str) -> None:
    cost = roofline(model)
    fixed = cost.overhead_s
    short, long = cost.prefill_s([Span(0, 10_000)]) - fixed, cost.prefill_s([Span(0, 80_000)])
    growth = (long - fixed) / short
    assert growth > 8.01 if cost.geometry.row_bytes else growth == pytest.approx(8)
    assert cost.prefill_s([]) == 0.0


@given(cut=st.integers(1, 9999))
def test_a_prompt_costs_the_same_in_parts_but_for_the_overhead(cut: int) -> None:
    cost = roofline("Qwen3.5-27B")
    whole = cost.prefill_s([Span(0, 10_000)])
    parts = cost.prefill_s([Span(0, cut)]) + cost.prefill_s([Span(cut, 10_000 - cut)])
    assert parts == pytest.approx(whole + cost.overhead_s)


def test_a_dense_model_of_27_billion_weights_decodes_at_the_speed_of_its_weights() -> None:
    cost = roofline("Qwen3.5-27B")
    # 52 GB of weights less the embedding table at three quarters of 4.8 TB/s.
    expected = 2 * cost.spec.active_parameters / (0.75 * 4.8e12)
    assert cost.decode_s(1, 1) - cost.overhead_s == pytest.approx(expected, rel=0.02)


def test_few_requests_touch_few_experts() -> None:
    cost = roofline("Qwen3.5-35B-A3B")
    one = cost.decode_s(1, 1) - cost.overhead_s
    all_weights = 2 * cost.spec.parameters / (0.75 * 4.8e12)
    assert one < all_weights / 5
    assert cost.decode_s(512, 512) - cost.overhead_s > 0.8 * all_weights


def test_ranks_share_the_weights() -> None:
    alone, shared = roofline("Qwen3.5-27B"), roofline("Qwen3.5-27B", tp=4)
    ratio = (alone.decode_s(1, 1) - 0.004) / (shared.decode_s(1, 1) - 0.004)
    assert ratio == pytest.approx(4, rel=0.01)


def test_hardware_without_rates_is_refused() -> None:
    cost = roofline("Qwen3.5-27B")
    with pytest.raises(ConfigError, match="rates of cpu are not known"):
        replace(cost, hardware=find_hardware("cpu"))


@pytest.mark.parametrize(
    "rates", [(0.0, 0.1, 0.1), (-1.0, 0.1, 0.1), (1.0, -0.1, 0.1), (1.0, 0.0, 0.0)]
)
def test_rates_that_stop_the_clock_are_refused(rates: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError):
        GivenRates(
            prefill_tokens_per_s=rates[0], decode_base_s=rates[1], decode_per_request_s=rates[2]
        )


def test_given_rates_say_which_of_them_were_given() -> None:
    cost = GivenRates(
        prefill_tokens_per_s=1.0,
        decode_base_s=1.0,
        decode_per_request_s=1.0,
        given=frozenset({"decode_base_s"}),
    )
    sources = {name: value.source for name, value in cost.terms.items()}
    assert sources["decode_base_s"] is Source.FLAG
    assert sources["prefill_tokens_per_s"] is Source.ASSUMED
