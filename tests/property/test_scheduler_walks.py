"""The scheduler under random arrivals, aborts and flushes over pools of any size.

After every step the books are audited and each row that a lane reads is checked against its tokens.
Outputs depend on a request's history alone, so they must be what the history says, whatever the
pools, the strategy, the chunk size and the neighbours.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import Rig, make_rig, next_token

from twinpool.errors import CapacityError
from twinpool.memory.eviction import POLICY_NAMES
from twinpool.memory.running_cap import SlotStrategy
from twinpool.scheduling.events import FinishReason
from twinpool.scheduling.order import ORDER_NAMES

# Rows of a pool must be whole pages and whole runs must not be needed.
MAX_TOKENS = 130


@dataclass
class Traffic:
    """Random requests, and what is expected of them."""

    rnd: random.Random
    rig: Rig
    prompts: dict[int, list[int]] = field(default_factory=dict)
    wanted: dict[int, int] = field(default_factory=dict)
    failing: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    num_refused: int = 0

    def arrive(self) -> None:
        rnd = self.rnd
        base: list[int] = []
        if self.prompts and rnd.random() < 0.75:
            known = rnd.choice(list(self.prompts)[-15:])
            base = self.prompts[known] + self.rig.outputs[known]
            if rnd.random() < 0.6:
                base = base[: rnd.randint(0, len(base))]
        prompt = (base + [rnd.randint(0, 2) for _ in range(rnd.randint(1, 30))])[:100]
        places = {rnd.randint(1, len(prompt)) for _ in range(rnd.randint(0, 2))} - {len(prompt)}
        max_tokens = rnd.randint(1, 30)
        try:
            request_id = self.rig.add(
                prompt,
                max_tokens,
                boundaries=tuple(sorted(places)),
                namespace=rnd.choice(["", "", "", "x"]),
            )
        except CapacityError:
            self.num_refused += 1
            return
        self.prompts[request_id] = prompt
        self.wanted[request_id] = max_tokens
        if rnd.random() < 0.05:
            self.failing.add(request_id)

    def abort(self) -> None:
        live = [i for i in self.prompts if i not in self.rig.ended and i not in self.aborted]
        if live:
            request_id = self.rnd.choice(live)
            assert self.rig.scheduler.abort(request_id)
            assert not self.rig.scheduler.abort(request_id)
            self.aborted.add(request_id)
            self.rig.scheduler.audit()

    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.rig.scheduler.has_work:
                self.rig.step(deep=True)

    def expected(self, request_id: int) -> list[int]:
        history = list(self.prompts[request_id])
        for _ in range(self.wanted[request_id]):
            history.append(next_token(np.array(history), request_id))
        return history[len(self.prompts[request_id]) :]

    def check_end(self) -> None:
        """Everything ended, as it should, and nothing is held."""
        rig = self.rig
        for request_id in self.prompts:
            if request_id in self.aborted:
                assert request_id not in rig.ended
                continue
            end = rig.ended[request_id]
            if request_id in self.failing:
                assert (end.finish_reason, end.error) == (FinishReason.ERROR, "fault")
                continue
            assert end.finish_reason is FinishReason.LENGTH
            assert rig.outputs[request_id] == self.expected(request_id)
            assert 0 <= rig.cached[request_id] < len(self.prompts[request_id])
        snapshot = rig.scheduler.snapshot()
        assert snapshot.num_running == snapshot.num_waiting == 0
        for pool in (snapshot.kv, snapshot.state):
            assert pool.working == 0
            assert pool.free + pool.cached == pool.capacity
            assert pool.evictable == pool.cached
        assert rig.scheduler.flush()
        rig.scheduler.audit()
        snapshot = rig.scheduler.snapshot()
        assert snapshot.kv.free == snapshot.kv.capacity
        assert snapshot.state.free == snapshot.state.capacity


def run_traffic(seed: str, num_operations: int, **settings_: Any) -> Traffic:
    rig = make_rig(**settings_)
    traffic = Traffic(random.Random(seed), rig)
    rig.executor.errors = lambda request_id: "fault" if request_id in traffic.failing else ""
    for _ in range(num_operations):
        dice = traffic.rnd.random()
        if dice < 0.4:
            traffic.arrive()
        elif dice < 0.45:
            traffic.abort()
        elif dice < 0.47:
            rig.scheduler.flush()
            rig.scheduler.audit()
        else:
            traffic.step(traffic.rnd.randint(1, 8))
    rig.run(max_steps=20_000, deep=True)
    traffic.check_end()
    return traffic


def random_sizes(rnd: random.Random, strategy: str) -> dict[str, Any]:
    page_size = 1 if strategy == "no_buffer" else rnd.choice([1, 1, 4, 16])
    num_slots = rnd.choice([1, 2, 3, 8, 20] if strategy == "direct" else [5, 6, 9, 20])
    return {
        "page_size": page_size,
        "num_slots": num_slots,
        "num_rows": rnd.choice([MAX_TOKENS // 16 * 16, 160, 400, 2000]),
        "chunk_tokens": rnd.choice([1, 7, 16, 64, 512]) if page_size == 1 else rnd.choice([16, 64]),
        "per_path": rnd.choice([-1, -1, 1, 2]),
        "track_interval": 16,
        "chunk_grid": 16,
        "is_enabled": rnd.random() > 0.1,
    }


CASES = list(itertools.product(SlotStrategy, POLICY_NAMES, ORDER_NAMES))


@pytest.mark.parametrize(("strategy", "policy", "order"), CASES)
def test_everything_ends_rightly_and_nothing_leaks(strategy, policy, order):
    rnd = random.Random(f"{strategy} {policy} {order}")
    for number in range(8):
        sizes = random_sizes(rnd, strategy)
        run_traffic(
            f"{number} {strategy}", 60, strategy=strategy, policy=policy, order=order, **sizes
        )


@pytest.mark.parametrize("order", ORDER_NAMES)
def test_model_without_linear_layers_needs_no_slots(order):
    rnd = random.Random(order)
    for number in range(12):
        sizes = random_sizes(rnd, "direct") | {"num_slots": 0, "needs_state": False}
        run_traffic(f"{number}", 60, order=order, **sizes)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    strategy=st.sampled_from(SlotStrategy),
    policy=st.sampled_from(POLICY_NAMES),
    order=st.sampled_from(ORDER_NAMES),
    num_operations=st.integers(1, 60),
    data=st.data(),
)
def test_same_calls_give_the_same_log_bytes(seed, strategy, policy, order, num_operations, data):
    sizes = random_sizes(random.Random(seed), strategy)
    sizes["num_rows"] = data.draw(st.sampled_from([128, 160, 400]))
    sizes |= {"strategy": strategy, "policy": policy, "order": order}
    first = run_traffic(str(seed), num_operations, **sizes)
    again = run_traffic(str(seed), num_operations, **sizes)
    assert first.rig.lines == again.rig.lines
