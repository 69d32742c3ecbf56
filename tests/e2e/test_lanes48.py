"""48 recorded agent sessions against small pools, in every strategy, policy and order.

The books are audited after every step; when slots run out requests wait, and nothing asserts.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lanes import LaneRun, recorded_lanes
from simulation import make_rig
from twinpool.memory.eviction import POLICY_NAMES
from twinpool.memory.running_cap import SlotStrategy
from twinpool.scheduling.order import ORDER_NAMES

HERE = Path(__file__).parent
# All first prompts at once would need 110,000 rows, and all longest ones 152,000.
SMALL: dict[str, Any] = {
    "num_slots": 60,
    "chunk_tokens": 2048,
    "chunk_grid": 16,
    "track_interval": 64,
}
# Which pool is short goes with the order, so that each combination meets one of both.
NUM_ROWS = {"fcfs": 30_000, "lpm": 100_000, "least-work": 45_000}
MATRIX = list(itertools.product(SlotStrategy, POLICY_NAMES, ORDER_NAMES))


def run_lanes(*, max_turns: int | None, audit: bool, **sizes: Any) -> LaneRun:
    rows = NUM_ROWS[sizes.get("order", "fcfs")]
    run = LaneRun(make_rig(**({"num_rows": rows} | SMALL | sizes)), max_turns)
    run.to_the_end(audit=audit)
    return run


def check_end(run: LaneRun) -> None:
    """Every turn ended, nothing is held, and all of both pools can be had back."""
    scheduler = run.rig.scheduler
    snapshot = scheduler.snapshot()
    assert snapshot.finished == {
        "stop": 0,
        "length": run.num_requests,
        "abort": 0,
        "error": 0,
    }
    assert snapshot.prompt_tokens == run.num_prompt_tokens
    assert (snapshot.kv.working, snapshot.state.working) == (0, 0)
    assert snapshot.kv.evictable == snapshot.kv.cached
    assert snapshot.state.evictable == snapshot.state.cached
    assert scheduler.flush()
    scheduler.audit()
    snapshot = scheduler.snapshot()
    assert snapshot.kv.free == snapshot.kv.capacity
    assert snapshot.state.free == snapshot.state.capacity


def test_the_trace_is_what_its_readme_says():
    lanes = recorded_lanes()
    assert len(lanes) == len({name for name, _ in lanes}) == 48
    assert sum(len(turn.blocks) > 0 for _, turns in lanes for turn in turns) == 2282


@pytest.mark.parametrize(("strategy", "policy", "order"), MATRIX)
def test_first_turns_end_and_the_same_run_gives_the_same_log(strategy, policy, order):
    sizes = {"strategy": strategy, "policy": policy, "order": order}
    run = run_lanes(max_turns=3, audit=True, **sizes)
    # More sessions than slots or rows allow at once: requests had to wait.
    assert run.most_waiting > 10
    snapshot = run.rig.scheduler.snapshot()
    assert snapshot.state.evictions["slots"] + snapshot.kv.evictions["rows"] > 0
    check_end(run)
    again = run_lanes(max_turns=3, audit=False, **sizes)
    assert again.rig.lines == run.rig.lines


@pytest.mark.parametrize(("policy", "num_rows"), [("lru", 30_000), ("joint-lru", 100_000)])
def test_all_sessions_run_to_the_end(policy, num_rows):
    sizes = {"policy": policy, "num_rows": num_rows, "order": "lpm"}
    run = run_lanes(max_turns=None, audit=True, **sizes)
    assert run.num_requests == 2282
    assert run.most_waiting > 10
    check_end(run)


def test_the_log_does_not_depend_on_the_order_of_hashes():
    code = (
        "from test_lanes48 import run_lanes\n"
        "run = run_lanes(max_turns=1, audit=False, strategy='extra_buffer_lazy')\n"
        "print(run.log_digest())\n"
    )
    path = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_with_cache_off_the_lanes_end_too():
    run = run_lanes(max_turns=1, audit=True, is_enabled=False)
    assert run.rig.scheduler.snapshot().cached_tokens == 0
    check_end(run)


@pytest.mark.soak
@pytest.mark.parametrize("per_path", [-1, 2])
@pytest.mark.parametrize(("strategy", "policy", "order"), MATRIX)
def test_all_sessions_run_to_the_end_in_every_combination(strategy, policy, order, per_path):
    sizes = {"strategy": strategy, "policy": policy, "order": order, "per_path": per_path}
    run = run_lanes(max_turns=None, audit=True, **sizes)
    assert run.num_requests == 2282
    assert run.most_waiting > 10
    digest = run.log_digest()
    check_end(run)
    assert run_lanes(max_turns=None, audit=False, **sizes).log_digest() == digest
