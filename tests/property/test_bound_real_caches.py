"""No scheduler and no cache of ours reuses more than the bound says, and the bound has its order.

The live scheduler and prefix cache run small random traffic in pools that are too small for it;
what they served is bounded afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from lanes import LaneRun
from served import infinite_tokens, most_held, served, traces
from simulation import Rig, make_rig
from twinpool.replay.bound import ByteBudget, hit_bound
from twinpool.replay.records import ServedRequest

small = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass
class Recorder:
    """Drives a rig step by step, one second each, and records what it served."""

    rig: Rig
    admitted: dict[int, int] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    retractions: dict[int, int] = field(default_factory=dict)
    first_token: dict[int, int] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    prompts: dict[int, tuple[list[int], str]] = field(default_factory=dict)
    now: int = 0
    _seen: int = 0

    def __getattr__(self, name: str):
        """Be the rig in everything else."""
        return getattr(self.rig, name)

    def add(self, prompt: Sequence[int], output: int, namespace: str = "") -> int:
        number = self.rig.add(prompt, output, namespace=namespace)
        self.prompts[number] = (list(prompt), namespace)
        return number

    def step(self, *, audit: bool = True) -> None:
        """Run one step, if there is work, and note what happened in it."""
        plan = self.rig.step(audit=audit)
        lines, self._seen = self.rig.lines[self._seen :], len(self.rig.lines)
        for entry in map(json.loads, lines):
            for number, _ in entry.get("retract", ()):
                self.retractions[number] = self.retractions.get(number, 0) + 1
            for number, depth, _, _ in entry.get("admit", ()):
                self.admitted.setdefault(number, self.now)
                self.cached.setdefault(number, depth)
        self.now += 1
        for lane in plan.lanes if plan else ():
            if self.rig.outputs[lane.request_id]:
                self.first_token.setdefault(lane.request_id, self.now)
            if lane.request_id in self.rig.ended:
                self.finished[lane.request_id] = self.now

    def records(self) -> list[ServedRequest]:
        """Return the records of all requests; all must have ended."""
        return [
            served(
                prompt + self.rig.outputs[number][:-1],
                (self.admitted[number], self.first_token[number], self.finished[number]),
                prompt=len(prompt),
                index=number,
                namespace=namespace,
                cached=self.cached[number],
                retractions=self.retractions.get(number, 0),
            )
            for number, (prompt, namespace) in self.prompts.items()
        ]


def run_conversations(recorder: Recorder, rng: Random, num_requests: int) -> list[ServedRequest]:
    """Let a few conversations take turns, some while others run; return what was served."""
    last: dict[int, int] = {}
    for _ in range(num_requests):
        talk = rng.randrange(5)
        before = last.get(talk)
        history = [talk, talk, talk, talk]
        if before in recorder.finished:
            history = recorder.prompts[before][0] + recorder.rig.outputs[before][:-1]
        if len(history) > 26 or rng.random() < 0.2:
            # Cut back: a part of the history is sent again with another end.
            history = history[: rng.randint(3, len(history))][:20]
        prompt = history + [rng.randint(0, 2) for _ in range(rng.randint(1, 4))]
        namespace = "other" if talk == 4 else ""
        last[talk] = recorder.add(prompt, rng.randint(1, 5), namespace)
        for _ in range(rng.randint(0, 12)):
            recorder.step()
    for _ in range(1000):
        if not recorder.rig.scheduler.has_work:
            return recorder.records()
        recorder.step()
    raise AssertionError("not done")


@pytest.mark.parametrize("policy", ["lru", "joint-lru"])
@pytest.mark.parametrize("strategy", ["direct", "extra_buffer", "no_buffer"])
@small
@given(
    seed=st.integers(0, 2**32),
    num_requests=st.integers(10, 30),
    rows=st.integers(40, 64),
    slots=st.integers(5, 9),
    order=st.sampled_from(["fcfs", "lpm"]),
    chunk=st.sampled_from([4, 64]),
)
def test_no_real_cache_reuses_more(policy, strategy, seed, num_requests, rows, slots, order, chunk):
    rig = make_rig(
        num_rows=rows,
        num_slots=slots,
        strategy=strategy,
        policy=policy,
        order=order,
        chunk_tokens=chunk,
        chunk_grid=4,
        track_interval=2,
    )
    records = run_conversations(Recorder(rig), Random(seed), num_requests)
    cached = sum(record.cached_tokens for record in records)
    bound = hit_bound(records, capacity_units=rows, state_slots=slots)
    event("reuses" if cached else "reuses nothing")
    event("memory binds" if bound.hit_tokens < infinite_tokens(records) else "memory is ample")
    assert cached <= bound.hit_tokens <= infinite_tokens(records)
    budget = ByteBudget(rows * 7 + slots * 30, 7, 30)
    assert cached <= hit_bound(records, one_budget=budget).hit_tokens


@pytest.mark.parametrize("policy", ["lru", "joint-lru"])
@pytest.mark.parametrize(("rows", "slots"), [(45_000, 200), (60_000, 64), (80_000, 60)])
def test_no_cache_reuses_more_of_the_recorded_lanes(policy, rows, slots):
    rig = make_rig(num_rows=rows, num_slots=slots, policy=policy, chunk_tokens=2048, max_running=12)
    recorder = Recorder(rig)
    LaneRun(recorder, max_turns=3).to_the_end(audit=False)
    records = recorder.records()
    assert len(records) > 130
    cached = sum(record.cached_tokens for record in records)
    bound = hit_bound(records, capacity_units=rows, state_slots=slots)
    # Every lane comes back after all the others: the memory is short for any policy.
    assert 0 < cached <= bound.hit_tokens < infinite_tokens(records)


@small
@given(trace=traces(max_requests=9, max_units=8))
def test_memory_without_end_reuses_all_that_is_shared(trace):
    everything = infinite_tokens(trace)
    assert hit_bound(trace).hit_tokens == everything
    ample = hit_bound(trace, capacity_units=1000, state_slots=1000)
    assert ample.hit_tokens == everything
    assert ample.is_exact


@small
@given(
    trace=traces(max_requests=9, max_units=8),
    spare=st.tuples(st.integers(0, 6), st.integers(0, 4)),
    more=st.tuples(st.integers(0, 4), st.integers(0, 3)),
    slot_bytes=st.integers(0, 40),
)
def test_more_memory_and_a_free_split_never_lower_the_bound(trace, spare, more, slot_bytes):
    units, slots = (held + free for held, free in zip(most_held(trace), spare, strict=True))
    bound = hit_bound(trace, capacity_units=units, state_slots=slots).hit_tokens
    larger = hit_bound(trace, capacity_units=units + more[0], state_slots=slots + more[1])
    assert larger.hit_tokens >= bound
    budget = ByteBudget(units * 10 + slots * slot_bytes, 10, slot_bytes)
    free_split = hit_bound(trace, one_budget=budget)
    assert free_split.hit_tokens >= bound
    more_bytes = budget._replace(total_bytes=budget.total_bytes + more[0] * 10)
    assert hit_bound(trace, one_budget=more_bytes).hit_tokens >= free_split.hit_tokens


@small
@given(
    trace=traces(max_requests=12, max_units=8),
    spare=st.tuples(st.integers(0, 4), st.integers(0, 3)),
    max_rows=st.integers(1, 6),
)
def test_fewer_rows_only_raise_the_bound(trace, spare, max_rows):
    units, slots = (held + free for held, free in zip(most_held(trace), spare, strict=True))
    full = hit_bound(trace, capacity_units=units, state_slots=slots)
    coarse = hit_bound(trace, capacity_units=units, state_slots=slots, max_rows=max_rows)
    assert full.is_exact
    assert coarse.num_rows <= max_rows
    assert full.hit_tokens <= coarse.hit_tokens <= infinite_tokens(trace)
    if coarse.is_exact:
        assert coarse.hit_tokens == full.hit_tokens
