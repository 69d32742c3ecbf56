"""The scheduler under random arrivals, aborts, faults and flushes over pools of any size.

After every step the books are audited and each row that a lane reads is checked against its tokens.
Outputs depend on a request's history alone, so they must be what the history says, whatever the
pools, the strategy, the chunk size and the neighbours.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from simulation import make_rig
from traffic import Traffic
from twinpool.memory.arena import Arena
from twinpool.memory.eviction import POLICY_NAMES
from twinpool.memory.running_cap import SlotStrategy
from twinpool.scheduling.order import ORDER_NAMES

STRATEGIES = st.sampled_from(SlotStrategy)


def random_sizes(rnd: random.Random, strategy: str) -> dict[str, Any]:
    """Choose pools and chunks that the strategy can run with, the tiniest included."""
    page_size = 1 if strategy == "no_buffer" else rnd.choice([1, 1, 4, 16])
    num_slots = rnd.choice([1, 2, 3, 8, 20] if strategy == "direct" else [5, 6, 9, 20])
    chunks = [1, 7, 16, 64, 512] if page_size == 1 else [16, 64, 512]
    return {
        "page_size": page_size,
        "num_slots": num_slots,
        "num_rows": rnd.choice([128, 160, 400, 2000]),
        "chunk_tokens": rnd.choice(chunks),
        "per_path": rnd.choice([-1, -1, 1, 2]),
        "track_interval": 16,
        "chunk_grid": 16,
        "is_enabled": rnd.random() > 0.1,
    }


def walk(seed: str, num_operations: int, **sizes: Any) -> Traffic:
    """Do operations at random and run to the end."""
    rnd = random.Random(seed)
    traffic = Traffic(make_rig(**sizes))
    for _ in range(num_operations):
        dice = rnd.random()
        if dice < 0.4:
            base: list[int] = []
            if traffic.prompts and rnd.random() < 0.75:
                base = traffic.history(rnd.choice(list(traffic.prompts)[-15:]))
                if rnd.random() < 0.6:
                    base = base[: rnd.randint(0, len(base))]
            prompt = (base + [rnd.randint(0, 2) for _ in range(rnd.randint(1, 30))])[:100]
            traffic.arrive(
                prompt,
                rnd.randint(1, 30),
                boundaries={rnd.randint(1, len(prompt)) for _ in range(rnd.randint(0, 2))},
                namespace=rnd.choice(["", "", "", "x"]),
                fails=rnd.random() < 0.05,
            )
        elif dice < 0.45 and traffic.live:
            traffic.abort(rnd.choice(traffic.live))
        elif dice < 0.47:
            traffic.flush()
        else:
            traffic.step(rnd.randint(1, 8))
    traffic.close()
    return traffic


CASES = list(itertools.product(SlotStrategy, POLICY_NAMES, ORDER_NAMES))


@pytest.mark.parametrize(("strategy", "policy", "order"), CASES)
def test_everything_ends_rightly_and_nothing_leaks(strategy, policy, order):
    rnd = random.Random(f"{strategy} {policy} {order}")
    for number in range(6):
        sizes = random_sizes(rnd, strategy)
        walk(f"{number} {strategy}", 60, strategy=strategy, policy=policy, order=order, **sizes)


@pytest.mark.parametrize("order", ORDER_NAMES)
def test_a_model_without_linear_layers_needs_no_slots(order):
    rnd = random.Random(order)
    for number in range(10):
        sizes = random_sizes(rnd, "direct") | {"num_slots": 0, "needs_state": False}
        walk(f"{number}", 60, order=order, **sizes)


@pytest.mark.parametrize(("policy", "order"), list(itertools.product(POLICY_NAMES, ORDER_NAMES)))
def test_states_and_rows_share_an_arena(policy, order):
    rnd = random.Random(f"arena {policy} {order}")
    for number in range(8):
        sizes = random_sizes(rnd, "direct") | {"policy": policy, "order": order}
        page_size = sizes["page_size"]
        per_slot = page_size * rnd.choice([1, 3, 10] if page_size == 1 else [1, 2])
        arena = Arena(-(-180 // per_slot) + rnd.choice([4, 12, 40]), per_slot, page_size)
        walk(f"{number}", 60, arena=arena, **sizes)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    strategy=STRATEGIES,
    policy=st.sampled_from(POLICY_NAMES),
    order=st.sampled_from(ORDER_NAMES),
    num_operations=st.integers(1, 50),
)
def test_same_calls_give_the_same_log_bytes(seed, strategy, policy, order, num_operations):
    sizes = random_sizes(random.Random(seed), strategy)
    sizes |= {"strategy": strategy, "policy": policy, "order": order}
    first = walk(str(seed), num_operations, **sizes)
    again = walk(str(seed), num_operations, **sizes)
    assert first.rig.lines == again.rig.lines


class SchedulerMachine(RuleBasedStateMachine):
    """The same by Hypothesis, which shrinks what fails to a few calls."""

    @initialize(
        seed=st.integers(0, 1000),
        strategy=STRATEGIES,
        policy=st.sampled_from(POLICY_NAMES),
        order=st.sampled_from(ORDER_NAMES),
        needs_state=st.sampled_from([True, True, True, False]),
    )
    def build(self, seed, strategy, policy, order, needs_state) -> None:
        sizes = random_sizes(random.Random(seed), strategy) | {"needs_state": needs_state}
        self.traffic = Traffic(make_rig(strategy=strategy, policy=policy, order=order, **sizes))

    @rule(
        data=st.data(),
        more=st.lists(st.integers(0, 2), min_size=1, max_size=40),
        max_tokens=st.integers(1, 40),
        boundaries=st.sets(st.integers(1, 80), max_size=2),
        namespace=st.sampled_from(["", "", "x"]),
        fails=st.sampled_from([False] * 9 + [True]),
    )
    def arrive(self, data, more, max_tokens, boundaries, namespace, fails) -> None:
        base: list[int] = []
        if self.traffic.prompts:
            base = self.traffic.history(data.draw(st.sampled_from(list(self.traffic.prompts))))
            base = base[: data.draw(st.integers(0, len(base)))]
        self.traffic.arrive(
            (base + more)[:90],
            max_tokens,
            boundaries=boundaries,
            namespace=namespace,
            fails=fails,
        )

    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps) -> None:
        self.traffic.step(num_steps)

    @precondition(lambda self: self.traffic.live)
    @rule(data=st.data())
    def abort(self, data) -> None:
        self.traffic.abort(data.draw(st.sampled_from(self.traffic.live)))

    @rule()
    def flush(self) -> None:
        self.traffic.flush()

    def teardown(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.close()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
