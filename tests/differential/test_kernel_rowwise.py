"""Row-wise kernels: equal their twins, and a row's bits do not depend on the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernel_cases import randn, same_bits

from twinpool.kernels import reference, rowwise

SHAPES = [(0, 8), (1, 37), (3, 768), (65, 200), (33, 1001)]
Op = Callable[[object, torch.Tensor], torch.Tensor]


def ops(width: int) -> dict[str, Op]:
    """Ops of one row each, by name, taking the module and the rows."""
    weight = randn(2, width)
    return {
        "rms_norm": lambda module, x: module.rms_norm(x, weight, 1e-6),
        "add_rms_norm": lambda module, x: module.add_rms_norm(x.clone(), x * 2, weight, 1e-6),
        "silu_mul": lambda module, x: module.silu_mul(torch.cat([x * 10, x], dim=1)),
        "log_softmax": lambda module, x: module.log_softmax(x * 10),
        "add_gated": lambda module, x: added(module, x),
        "route": lambda module, x: module.route(x, min(4, width), True)[1],
    }


def added(module: object, x: torch.Tensor) -> torch.Tensor:
    out = x * 3
    module.add_gated(out, x, x[:, :1].contiguous())
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", list(ops(8)))
def test_op_equals_its_twin_and_rows_do_not_depend_on_each_other(
    name: str, shape: tuple[int, int]
) -> None:
    op, x = ops(shape[1])[name], randn(1, *shape)
    actual = op(rowwise, x)
    torch.testing.assert_close(actual, op(reference, x), atol=2e-5, rtol=1e-5)
    for row in range(0, shape[0], 9):
        assert same_bits(op(rowwise, x[row : row + 1].contiguous()), actual[row : row + 1])


def test_add_rms_norm_adds_in_place() -> None:
    residual, x = randn(1, 3, 20), randn(2, 3, 20)
    expected = residual + x
    out = rowwise.add_rms_norm(residual, x, torch.ones(20), 1e-6)
    assert same_bits(residual, expected)
    assert same_bits(out, rowwise.rms_norm(expected, torch.ones(20), 1e-6))


@pytest.mark.parametrize("normalise", [False, True])
def test_route_chooses_what_its_twin_chooses_and_the_lower_id_where_equal(normalise: bool) -> None:
    logits = randn(3, 40, 16).round()
    ids, weights = rowwise.route(logits, 5, normalise)
    expected_ids, expected_weights = reference.route(logits, 5, normalise)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embed_gives_the_rows_of_the_table(dtype: torch.dtype) -> None:
    table = randn(1, 50, 37).to(dtype)
    tokens = np.random.default_rng(0).integers(0, 50, 70).astype(np.int32)
    assert torch.equal(rowwise.embed(table, tokens), table[torch.from_numpy(tokens).long()].float())


@pytest.mark.parametrize("token", [-1, 50])
def test_embed_refuses_a_token_outside_the_table(token: int) -> None:
    with pytest.raises(IndexError, match="table of 50"):
        rowwise.embed(randn(1, 50, 8), np.array([3, token], np.int32))


def test_rope_equals_its_twin_up_to_the_longest_context() -> None:
    positions = np.array([0, 1, 31, 4095, 262143], np.int32)
    inv_freq = 1e7 ** -(torch.arange(0, 64, 2).float() / 64)
    actual, expected = (
        rowwise.rope(positions, inv_freq, 1.5),
        reference.rope(positions, inv_freq, 1.5),
    )
    torch.testing.assert_close(actual.cos, expected.cos, atol=1e-6, rtol=0)
    torch.testing.assert_close(actual.sin, expected.sin, atol=1e-6, rtol=0)


def test_softmax_and_gates_hold_at_the_ends_of_float32() -> None:
    x = torch.tensor([[-1e4, -100.0, -88.0, 0.0, 88.0, 100.0, 1e4, 0.5]])
    gate_up = torch.cat([x, torch.ones_like(x)], dim=1)
    torch.testing.assert_close(rowwise.silu_mul(gate_up), reference.silu_mul(gate_up))
    torch.testing.assert_close(rowwise.log_softmax(x), reference.log_softmax(x))


def test_nan_is_passed_on_in_its_row_alone() -> None:
    x = randn(1, 3, 20)
    x[1, 4] = float("nan")
    for name, op in ops(20).items():
        if name != "route":
            out = op(rowwise, x)
            assert out[1].isnan().any()
            assert not out[[0, 2]].isnan().any()
