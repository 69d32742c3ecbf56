"""The attention kernel: equals its twin, and gives the same bits however tokens arrive."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from kernel_cases import AttentionCase, LanePlan, ragged, same_bits

from twinpool.kernels import attention, reference, reference_mixers
from twinpool.kernels.attention import SEGMENT

# H, HK, key width, value width, rotary width: one head per group or many, widths that fill no
# vector, no rotary part at all.
DIMS = [(6, 2, 16, 16, 8), (6, 2, 128, 128, 64), (3, 3, 20, 13, 10), (8, 1, 32, 40, 0)]


def scattered(seed: int, count: int, rows: int = 4096) -> np.ndarray:
    return np.random.default_rng(seed).permutation(rows)[:count].astype(np.int32)


def run(case: AttentionCase, proj: torch.Tensor, *lanes: LanePlan) -> torch.Tensor:
    batch = ragged(lanes)
    rope = reference.rope(batch.positions, case.inv_freq)
    return attention.attention(proj, rope, case.weights, case.kv, batch)


@pytest.mark.parametrize(("bf16", "has_gate"), [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("dims", DIMS)
def test_ragged_lanes_equal_the_twin(
    dims: tuple[int, int, int, int, int], bf16: bool, has_gate: bool
) -> None:
    rows = scattered(0, 3000)
    pools, outs = [], []
    for function in (reference_mixers.attention, attention.attention):
        case = AttentionCase(*dims, bf16=bf16, has_gate=has_gate, has_norm=has_gate)
        first = ragged([LanePlan(0, 600, rows), LanePlan(0, 31, rows[700:731])])
        second = ragged(
            [
                LanePlan(31, 1, rows[700:732]),
                LanePlan(0, 0, rows[:0]),
                LanePlan(0, 1, rows[900:901]),
                LanePlan(600, 65, np.concatenate([rows[:600], rows[1000:1065]])),
                LanePlan(600, 1, np.concatenate([rows[:600], rows[1100:1101]])),
            ]
        )
        first = ragged([LanePlan(0, 600, rows[:600]), LanePlan(0, 31, rows[700:731])])
        for seed, batch in ((4, first), (5, second)):
            rope = reference.rope(batch.positions, case.inv_freq)
            proj = case.proj(seed, batch.num_tokens)
            outs.append(function(proj, rope, case.weights, case.kv, batch))
        pools.append(case.kv.pool)
    # A key that rounds to the other neighbour in bfloat16 moves its scores by 2^-9.
    tolerance = 2e-3 if bf16 else 1e-5
    for expected, actual in zip(outs[:2], outs[2:], strict=True):
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=1e-4)
    if bf16:
        assert np.mean(pools[0] != pools[1]) < 1e-3
    else:
        np.testing.assert_allclose(pools[1], pools[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("dims", DIMS)
def test_any_split_of_a_prompt_gives_the_same_bits(
    dims: tuple[int, int, int, int, int], bf16: bool
) -> None:
    case = AttentionCase(*dims, bf16=bf16)
    length = 101
    proj, rows = case.proj(6, length), scattered(1, length)
    whole = run(case, proj, LanePlan(0, length, rows))
    rng = np.random.default_rng(3)
    for cuts in [
        list(range(1, length)),
        [1],
        [32],
        [33],
        [100],
        *(rng.choice(100, 4) + 1 for _ in range(3)),
    ]:
        bounds = [0, *sorted({int(cut) for cut in cuts}), length]
        case.clear()
        parts = [
            run(case, proj[a:b].contiguous(), LanePlan(a, b - a, rows[:b]))
            for a, b in itertools.pairwise(bounds)
        ]
        assert same_bits(torch.cat(parts), whole)


@pytest.mark.parametrize("bf16", [False, True])
def test_decode_over_several_segments_gives_the_bits_of_prefill(bf16: bool) -> None:
    case = AttentionCase(6, 2, 32, 32, 16, bf16=bf16)
    length = 2 * SEGMENT + 3
    proj, rows = case.proj(7, length), scattered(2, length)
    whole = run(case, proj, LanePlan(0, length, rows))
    for position in (SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT - 1, 2 * SEGMENT, length - 1):
        plan = LanePlan(position, 1, rows[: position + 1])
        out = run(case, proj[position : position + 1].contiguous(), plan)
        assert same_bits(out, whole[position : position + 1])


def test_batch_mates_and_rows_do_not_change_bits() -> None:
    case = AttentionCase(6, 2, 32, 32, 16)
    history, tokens = 70, 9
    proj = case.proj(8, history + tokens)
    contiguous = np.arange(history + tokens, dtype=np.int32)
    run(case, proj[:history].contiguous(), LanePlan(0, history, contiguous[:history]))
    alone = run(case, proj[history:].contiguous(), LanePlan(history, tokens, contiguous))
    rng = np.random.default_rng(4)
    for trial in range(5):
        case.clear()
        order = scattered(10 + trial, 600)
        mine, rest = order[: history + tokens], order[history + tokens :]
        run(case, proj[:history].contiguous(), LanePlan(0, history, mine[:history]))
        sizes = [int(n) for n in rng.integers(0, 90, 3)]
        mates = [LanePlan(0, n, rest[100 * i : 100 * i + n]) for i, n in enumerate(sizes)]
        at = int(rng.integers(0, 4))
        lanes = [*mates[:at], LanePlan(history, tokens, mine), *mates[at:]]
        packed = [case.proj(30 + i, lane.tokens) for i, lane in enumerate(lanes)]
        packed[at] = proj[history:]
        out = run(case, torch.cat(packed), *lanes)
        first = sum(lane.tokens for lane in lanes[:at])
        assert same_bits(out[first : first + tokens], alone)


def test_lanes_that_share_a_prefix_read_the_same_rows() -> None:
    case = AttentionCase(6, 2, 32, 32, 16)
    proj, rows = case.proj(9, 50), scattered(5, 60)
    run(case, proj[:40].contiguous(), LanePlan(0, 40, rows[:40]))
    ends = [np.concatenate([rows[:40], rows[40 + i : 41 + i]]) for i in range(3)]
    last = proj[40:41].contiguous()
    alone = run(case, last, LanePlan(40, 1, ends[0]))
    out = run(case, last.repeat(3, 1), *(LanePlan(40, 1, end) for end in ends))
    for i in range(3):
        assert same_bits(out[i : i + 1], alone)


def test_other_rows_are_neither_read_nor_written() -> None:
    case = AttentionCase(6, 2, 20, 13, 8)
    rows = scattered(6, 40)
    out = run(case, case.proj(10, 40), LanePlan(0, 40, rows))
    assert not out.isnan().any()
    untouched = np.setdiff1d(np.arange(case.num_rows), rows)
    assert np.isnan(case.kv.pool[untouched]).all()
    # The rest of the row is another layer's.
    assert np.isnan(case.kv.pool[rows][:, : case.kv.k_offset]).all()
    assert np.isnan(case.kv.pool[rows][:, -3:]).all()


def test_an_empty_batch_touches_nothing() -> None:
    case = AttentionCase(6, 2, 16, 16, 8)
    assert run(case, case.proj(1, 0)).shape == (0, 96)
    assert run(case, case.proj(1, 0), LanePlan(0, 0, scattered(0, 0))).shape == (0, 96)
    assert np.isnan(case.kv.pool).all()


def test_nan_in_one_lane_stays_in_that_lane() -> None:
    case = AttentionCase(6, 2, 16, 16, 8)
    rows, proj = scattered(7, 40), case.proj(2, 40)
    plans = [LanePlan(0, 20, rows[:20]), LanePlan(0, 20, rows[20:])]
    clean = run(case, proj, *plans)
    proj[5] = float("nan")
    out = run(case, proj, *plans)
    assert out[5:20].isnan().all()
    assert same_bits(out[20:], clean[20:])
    assert same_bits(out[:5], clean[:5])
