"""Workload plans are the best that trying every number finds, in exact integers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinpool.errors import CapacityError
from twinpool.memory.running_cap import running_cap
from twinpool.memory.sizing import Budget, PoolSizes, split_by_ratio, split_pinned
from twinpool.memory.workload import Workload, plan_concurrency, plan_workload
from twinpool.spec.geometry import Geometry
from twinpool.units import DType


def geometry(row: int, slot: int) -> Geometry:
    return Geometry(
        key_bytes=row,
        value_bytes=0,
        conv_bytes=slot // 3,
        recurrent_bytes=slot - slot // 3,
        kv_dtype=DType.BFLOAT16,
        conv_dtype=DType.BFLOAT16,
        state_dtype=DType.FLOAT32,
        tp=1,
        num_full_layers=1,
        num_linear_layers=1,
    )


GEOMETRIES = st.builds(geometry, st.integers(1, 40), st.integers(1, 900))
ONE_POOL = st.one_of(
    st.builds(geometry, st.integers(1, 40), st.just(0)),
    st.builds(geometry, st.just(0), st.integers(1, 900)),
)
BUDGETS = st.builds(
    Budget,
    rest_bytes=st.integers(1, 60_000),
    page_size=st.sampled_from([1, 4, 16]),
    slots_per_request=st.sampled_from([1, 3, 4, 5]),
    draft_tokens=st.sampled_from([0, 0, 2]),
    max_running_requests=st.one_of(st.none(), st.integers(1, 30)),
)


def pinned(shape: Geometry, budget: Budget, slots: int) -> PoolSizes | None:
    try:
        return split_pinned(shape, budget, slots)
    except CapacityError:
        return None


@given(shape=GEOMETRIES, budget=BUDGETS, context=st.integers(1, 300))
def test_concurrency_is_the_most_that_any_split_gives(
    shape: Geometry, budget: Budget, context: int
) -> None:
    best = 0
    for running in range(1, min(budget.max_running_requests or 400, 400) + 1):
        asked = replace(budget, max_running_requests=running)
        sizes = pinned(shape, asked, running * budget.slots_per_request)
        if sizes is not None and sizes.kv_tokens >= running * context:
            best = running
    found = plan_concurrency(shape, budget, context)
    if best < 400:
        assert found.running == best
    assert (found.sizes is None) == (found.running == 0)


@given(
    shape=st.one_of(GEOMETRIES, ONE_POOL),
    budget=BUDGETS,
    sessions=st.integers(1, 40),
    context=st.integers(1, 200),
    running=st.integers(1, 12),
    checkpoints=st.integers(1, 3),
)
def test_sessions_that_fit_are_the_most_that_any_split_holds(
    shape: Geometry, budget: Budget, sessions: int, context: int, running: int, checkpoints: int
) -> None:
    workload = Workload(
        sessions=sessions,
        session_context=context,
        running=running,
        checkpoints_per_session=checkpoints,
    )

    def holds(count: int) -> bool:
        part = replace(workload, sessions=count, running=min(running, count))
        slots = part.slots(budget.slots_per_request) if shape.slot_bytes else 0
        sizes = pinned(shape, budget, slots)
        return sizes is not None and (not shape.row_bytes or sizes.kv_tokens >= part.kv_tokens)

    found = plan_workload(shape, budget, workload)
    best = max((count for count in range(1, 300) if holds(count)), default=0)
    if best < 299:
        assert found.max_sessions == best
    if sessions >= running:
        assert found.fits == (sessions <= found.max_sessions)
    per_session = context * shape.row_bytes + checkpoints * shape.slot_bytes
    assert found.host_bytes == max(sessions - found.max_sessions, 0) * per_session


@given(
    shape=GEOMETRIES,
    budget=BUDGETS,
    ratio=st.fractions(min_value="1/50", max_value=50, max_denominator=100),
)
def test_pinning_the_slots_of_a_ratio_gives_the_pools_of_that_ratio(
    shape: Geometry, budget: Budget, ratio: object
) -> None:
    try:
        by_ratio = split_by_ratio(shape, budget, ratio)  # type: ignore[arg-type]
    except CapacityError:
        return
    assert split_pinned(shape, budget, by_ratio.state_slots) == by_ratio


@given(shape=GEOMETRIES, budget=BUDGETS, slots=st.integers(1, 200))
def test_the_cap_never_exceeds_what_both_pools_hold(
    shape: Geometry, budget: Budget, slots: int
) -> None:
    sizes = pinned(shape, budget, slots)
    if sizes is None:
        return
    try:
        cap = running_cap(sizes, budget.max_running_requests).value
    except CapacityError:
        assert slots < budget.slots_per_request or sizes.kv_tokens < 2
        return
    assert cap * budget.slots_per_request <= sizes.state_slots
    assert cap * 2 <= sizes.kv_tokens
    if budget.draft_tokens:
        assert cap <= sizes.draft_requests
    total = sizes.state_bytes + sizes.draft_bytes + sizes.kv_tokens * shape.row_bytes
    assert total <= budget.rest_bytes


@pytest.mark.parametrize(("slots_per_request", "slots"), [(1, 48 + 13), (4, 48 + 36 + 4), (5, 101)])
def test_running_requests_are_counted_once(slots_per_request: int, slots: int) -> None:
    workload = Workload(sessions=48, session_context=10, running=12)
    assert workload.slots(slots_per_request) == slots
