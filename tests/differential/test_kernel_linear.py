"""Packed linears and experts: equal their twins, and a row's bits do not depend on the others."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import randn, same_bits

from twinpool.kernels import fast, onednn, reference
from twinpool.kernels.experts import PanelExperts
from twinpool.kernels.linear import PanelLinear, pack_panels
from twinpool.kernels.vector import PANEL

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(50, 37), (256, 96), (16, 8), (1, 5), (33, 1), (130, 200)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_equals_its_twin(shape: tuple[int, int], dtype: torch.dtype, has_bias: bool) -> None:
    weight = randn(1, *shape).to(dtype)
    bias = randn(2, shape[0]) if has_bias else None
    x = randn(3, 200, shape[1])
    expected = reference.ReferenceLinear(weight, bias)(x)
    torch.testing.assert_close(PanelLinear(weight, bias)(x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_of_a_linear_has_the_same_bits_in_any_batch(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    linear = PanelLinear(randn(1, *shape).to(dtype), randn(2, shape[0]))
    x = randn(3, 200, shape[1])
    whole = linear(x)
    for rows in (0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 64, 97):
        assert same_bits(linear(x[:rows].contiguous()), whole[:rows])
        assert same_bits(linear(x[200 - rows :].contiguous()), whole[200 - rows :])


def test_two_linears_side_by_side_give_the_bits_of_each_alone() -> None:
    first, second, x = randn(1, 40, 64), randn(2, 24, 64), randn(3, 9, 64)
    both = PanelLinear(torch.cat([first, second]))(x)
    assert same_bits(both[:, :40], PanelLinear(first)(x))
    assert same_bits(both[:, 40:], PanelLinear(second)(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_packing_keeps_every_weight_and_fills_with_zeros(dtype: torch.dtype) -> None:
    weight = (torch.arange(35 * 7).reshape(35, 7) % 251 + 1).to(dtype)
    packed = pack_panels(weight)
    assert packed.shape == (-(-35 // PANEL), 7, PANEL)
    assert packed.dtype == dtype
    assert packed.count_nonzero() == 35 * 7
    assert sorted(packed.flatten().tolist())[-5:] == sorted(weight.flatten().tolist())[-5:]


def test_a_linear_passes_nan_on() -> None:
    linear = PanelLinear(randn(1, 20, 16))
    x = randn(2, 3, 16)
    x[1, 3] = float("nan")
    y = linear(x)
    assert y[1].isnan().all()
    assert not y[[0, 2]].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("experts", "inner", "width", "tokens", "choices"),
    [
        (8, 40, 48, 17, 3),
        (8, 40, 48, 0, 3),
        (8, 40, 48, 1, 8),
        (3, 64, 64, 300, 2),
        (16, 33, 37, 65, 1),
    ],
)
def test_experts_equal_their_twin_and_rows_do_not_depend_on_each_other(
    experts: int, inner: int, width: int, tokens: int, choices: int, dtype: torch.dtype
) -> None:
    gate_up = randn(1, experts, 2 * inner, width, scale=0.2).to(dtype)
    down = randn(2, experts, width, inner, scale=0.2).to(dtype)
    x = randn(3, tokens, width)
    ids, weights = reference.route(randn(4, tokens, experts), choices, True)
    fast_experts = PanelExperts(gate_up, down)
    whole = fast_experts(x, ids, weights)
    expected = reference.ReferenceExperts(gate_up, down)(x, ids, weights)
    torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-4)
    for row in range(0, tokens, 7):
        one = [part[row : row + 1].contiguous() for part in (x, ids, weights)]
        assert same_bits(fast_experts(*one), whole[row : row + 1])


def test_onednn_is_refused_with_a_reason_where_bits_depend_on_rows() -> None:
    reasons = {
        onednn.shape_refusal(n, k, torch.float32) for n, k in [(768, 768), (512, 96), (64, 48)]
    }
    for reason in reasons - {""}:
        assert "rows" in reason or "refuses" in reason


def test_onednn_serves_bfloat16_exactly_where_nothing_refuses_it() -> None:
    refusal = fast.bfloat16_refusal(96, 64)
    linear = fast.pack_linear(randn(1, 96, 64).bfloat16())
    assert (linear.implementation == "onednn") == (refusal == "")
    assert fast.pack_linear(randn(1, 96, 64)).implementation == "panels"


def test_onednn_linear_equals_its_twin() -> None:
    weight, bias, x = randn(1, 48, 40), randn(2, 48), randn(3, 9, 40)
    expected = reference.ReferenceLinear(weight, bias)(x)
    linear = onednn.OneDnnLinear(weight, bias)
    torch.testing.assert_close(linear(x), expected, atol=1e-4, rtol=1e-4)
    assert linear(x[:0]).shape == (0, 48)
