"""The Gated DeltaNet kernel: equals its twin, and gives the same bits however tokens arrive."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from kernel_cases import DeltaCase, LanePlan, ragged, same_bits

from twinpool.kernels import delta, reference_mixers

NO_ROWS = np.zeros(0, np.int32)
# HK, HV, K, V: one group per key head or several; widths that fill no vector; the usual width.
DIMS = [(2, 4, 16, 24), (3, 3, 8, 16), (2, 2, 20, 5), (1, 2, 128, 128)]


def lane(tokens: int, slot: int, events: tuple[tuple[int, int], ...] = ()) -> LanePlan:
    return LanePlan(0, tokens, NO_ROWS, slot=slot, events=events)


def run(case: DeltaCase, proj: torch.Tensor, *lanes: LanePlan) -> torch.Tensor:
    return delta.gated_delta(proj, case.weights, case.state, ragged(lanes))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("dims", DIMS)
def test_ragged_lanes_with_events_equal_the_twin(
    dims: tuple[int, int, int, int], bf16: bool
) -> None:
    lanes = [
        lane(1, 2),
        lane(0, 7),
        lane(65, 3, ((1, 9), (40, 8), (65, 10))),
        lane(2, 4),
        lane(1, 5, ((1, 6),)),
    ]
    outs, cases = [], []
    for function in (reference_mixers.gated_delta, delta.gated_delta):
        case = DeltaCase(*dims, bf16=bf16)
        case.start(2, 3, 4, 5, seed=3)
        proj = case.proj(5, 69)
        outs.append(function(proj, case.weights, case.state, ragged(lanes)))
        cases.append(case)
    torch.testing.assert_close(outs[1], outs[0], atol=2e-5, rtol=1e-4)
    for slot in range(cases[0].num_slots):
        expected, actual = cases[0].recurrent(slot), cases[1].recurrent(slot)
        np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=1e-4)
        assert cases[0].conv(slot).tobytes() == cases[1].conv(slot).tobytes()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("dims", DIMS)
def test_any_split_of_a_prompt_gives_the_same_bits(
    dims: tuple[int, int, int, int], bf16: bool
) -> None:
    case = DeltaCase(*dims, bf16=bf16)
    proj, length = case.proj(6, 67), 67
    case.start(0, seed=9)
    whole = run(case, proj, lane(length, 0))
    state, conv = case.recurrent(0).copy(), case.conv(0).copy()
    rng = np.random.default_rng(1)
    for cuts in [
        list(range(1, length)),
        [1],
        [2],
        [66],
        *(rng.choice(66, 4) + 1 for _ in range(4)),
    ]:
        bounds = [0, *sorted({int(cut) for cut in cuts}), length]
        case.start(1, seed=9)
        parts = [
            run(case, proj[a:b].contiguous(), lane(b - a, 1)) for a, b in itertools.pairwise(bounds)
        ]
        assert same_bits(torch.cat(parts), whole)
        assert same_bits(case.recurrent(1), state)
        assert same_bits(case.conv(1), conv)


@pytest.mark.parametrize("bf16", [False, True])
def test_an_event_holds_the_state_that_a_shorter_run_ends_with(bf16: bool) -> None:
    case = DeltaCase(2, 4, 16, 24, bf16=bf16)
    proj = case.proj(7, 40)
    for depth in (1, 2, 3, 4, 17, 40):
        case.start(0, 1, seed=11)
        run(case, proj, lane(40, 0, ((depth, 5),)))
        run(case, proj[:depth].contiguous(), lane(depth, 1))
        assert same_bits(case.recurrent(5), case.recurrent(1))
        assert same_bits(case.conv(5), case.conv(1))


def test_two_events_after_one_token_hold_the_same_state() -> None:
    case = DeltaCase(2, 4, 16, 24)
    case.start(0)
    run(case, case.proj(7, 9), lane(9, 0, ((4, 5), (4, 6), (9, 7))))
    assert same_bits(case.recurrent(5), case.recurrent(6))
    assert same_bits(case.recurrent(7), case.recurrent(0))


@pytest.mark.parametrize("bf16", [False, True])
def test_batch_mates_and_slots_do_not_change_bits(bf16: bool) -> None:
    case = DeltaCase(2, 4, 16, 32, bf16=bf16)
    proj = case.proj(8, 33)
    case.start(0, seed=13)
    alone = run(case, proj, lane(33, 0))
    rng = np.random.default_rng(2)
    for _ in range(6):
        slots = rng.permutation(case.num_slots)[:4]
        case.start(*map(int, slots), seed=13)
        mates = [int(n) for n in rng.integers(0, 20, 3)]
        at = int(rng.integers(0, 4))
        sizes = [*mates[:at], 33, *mates[at:]]
        packed = [case.proj(20 + i, n) if i != at else proj for i, n in enumerate(sizes)]
        lanes = [lane(n, int(slot)) for n, slot in zip(sizes, slots, strict=True)]
        out = run(case, torch.cat(packed), *lanes)
        first = sum(sizes[:at])
        assert same_bits(out[first : first + 33], alone)
        assert same_bits(case.recurrent(int(slots[at])), case.recurrent(int(slots[at])))


def test_other_slots_are_neither_read_nor_written() -> None:
    case = DeltaCase(2, 4, 16, 24)
    case.start(3)
    out = run(case, case.proj(9, 12), lane(12, 3, ((5, 4),)))
    assert not out.isnan().any()
    for slot in set(range(case.num_slots)) - {3, 4}:
        assert np.isnan(case.recurrent(slot)).all()
        assert np.isnan(case.conv(slot)).all()
    # What lies in the slot before the layer's part belongs to other layers.
    assert np.isnan(case.state.recurrent[[3, 4], :8]).all()
    assert np.isnan(case.state.conv[[3, 4], :3]).all()
    assert np.isnan(case.state.conv[[3, 4], -4:]).all()


def test_an_empty_batch_touches_nothing() -> None:
    case = DeltaCase(2, 4, 16, 24)
    assert run(case, case.proj(9, 0)).shape == (0, 96)
    assert run(case, case.proj(9, 0), lane(0, 3)).shape == (0, 96)
    assert np.isnan(case.state.recurrent).all()


def test_nan_in_one_lane_stays_in_that_lane() -> None:
    case = DeltaCase(2, 4, 16, 24)
    proj = case.proj(10, 8)
    case.start(0, 1, 2)
    clean = run(case, proj, lane(4, 0), lane(4, 1))
    case.start(0, 1, 2)
    proj[1, 0] = float("nan")
    out = run(case, proj, lane(4, 0), lane(4, 1))
    assert out[1:4].isnan().any()
    assert same_bits(out[4:], clean[4:])
