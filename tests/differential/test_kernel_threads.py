"""One thread or all of them: the same bits, again and again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernel_cases import AttentionCase, DeltaCase, LanePlan, ragged, randn, same_bits

from twinpool.kernels import attention, delta, reference, rowwise, threads
from twinpool.kernels.experts import PanelExperts
from twinpool.kernels.linear import PanelLinear

ROUNDS = 12
"""Enough that a loop that reads what another is still writing shows up."""


def linear() -> torch.Tensor:
    layer = PanelLinear(randn(1, 300, 70), randn(2, 300))
    return torch.cat([layer(randn(3, rows, 70)) for rows in (1, 2, 100)])


def experts() -> torch.Tensor:
    layer = PanelExperts(randn(1, 6, 80, 48, scale=0.2), randn(2, 6, 48, 40, scale=0.2))
    ids, weights = rowwise.route(randn(4, 150, 6), 3, True)
    return layer(randn(3, 150, 48), ids, weights)


def norms() -> torch.Tensor:
    return rowwise.add_rms_norm(randn(1, 90, 200), randn(2, 90, 200), randn(3, 200), 1e-6)


def gated_delta() -> torch.Tensor:
    rows = np.zeros(0, np.int32)
    case = DeltaCase(2, 4, 16, 24)
    case.start(*range(7), seed=5)
    lanes = [LanePlan(0, 1, rows, slot=slot) for slot in range(5)]
    decode = ragged(lanes)
    mixed = ragged([*lanes, LanePlan(0, 40, rows, slot=5, events=[(3, 8), (40, 9)])])
    outs = [
        delta.gated_delta(case.proj(6, batch.num_tokens), case.weights, case.state, batch)
        for batch in (decode, mixed, decode)
    ]
    states = [torch.from_numpy(case.recurrent(slot).copy()) for slot in (0, 4, 5, 8, 9)]
    return torch.cat([part.flatten() for part in (*outs, *states)])


def attend() -> torch.Tensor:
    case = AttentionCase(6, 2, 32, 32, 16, num_rows=2048)
    rows = np.random.default_rng(0).permutation(2048).astype(np.int32)
    outs = []
    for lanes in (
        [LanePlan(0, 600, rows[:600]), LanePlan(0, 90, rows[700:790])],
        [LanePlan(600, 1, rows[:601]), LanePlan(90, 1, rows[700:791])],
        [LanePlan(601, 1, rows[:602]), LanePlan(91, 30, rows[700:821])],
    ):
        batch = ragged(lanes)
        rope = reference.rope(batch.positions, case.inv_freq)
        proj = case.proj(7, batch.num_tokens)
        outs.append(attention.attention(proj, rope, case.weights, case.kv, batch))
    return torch.cat(outs)


@pytest.mark.parametrize("run", [linear, experts, norms, gated_delta, attend])
def test_the_number_of_threads_does_not_change_bits(
    run: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "ENOUGH", 2**62)
    alone = run()
    monkeypatch.setattr(threads, "ENOUGH", 0)
    for _ in range(ROUNDS):
        assert same_bits(run(), alone)


def test_little_work_is_given_to_one_thread() -> None:
    assert threads.workers(10) == 1
    assert threads.workers() == threads.workers(threads.ENOUGH) >= 1


def test_two_threads_in_a_process_of_their_own() -> None:
    if threads.workers() > 1:
        pytest.skip("this process has more than one thread already")
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            __file__,
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 skipped" in done.stdout, done.stdout[-500:]
