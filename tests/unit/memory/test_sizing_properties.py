"""Sizing against a slow twin that counts slot by slot, over random budgets."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from twinpool.errors import CapacityError
from twinpool.memory.running_cap import running_cap
from twinpool.memory.sizing import Budget, PoolSizes, split_by_ratio, split_pinned
from twinpool.spec.geometry import Geometry
from twinpool.units import DType

RATIOS = st.builds(Fraction, st.integers(1, 2000), st.integers(1, 100))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    return Geometry(
        key_bytes=draw(st.integers(1, 300)),
        value_bytes=draw(st.integers(0, 300)),
        conv_bytes=draw(st.integers(1, 500)),
        recurrent_bytes=draw(st.integers(1, 5000)),
        kv_dtype=DType.BFLOAT16,
        conv_dtype=DType.BFLOAT16,
        state_dtype=DType.FLOAT32,
        tp=1,
        num_full_layers=1,
        num_linear_layers=3,
    )


@st.composite
def budgets(draw: st.DrawFn) -> Budget:
    return Budget(
        rest_bytes=draw(st.integers(30_000, 400_000)),
        page_size=draw(st.sampled_from([1, 2, 16, 64])),
        slots_per_request=draw(st.sampled_from([1, 3, 4, 5])),
        draft_tokens=draw(st.sampled_from([0, 0, 1, 4, 6])),
        max_running_requests=draw(st.sampled_from([None, 1, 7, 1000])),
    )


def _slots_one_by_one(geometry: Geometry, budget: Budget, ratio: Fraction) -> int:
    """Add slots, each with its part of the draft states, while the state share pays for them."""
    share = Fraction(budget.rest_bytes) * ratio / (1 + ratio)
    padding = geometry.slot_bytes * (1 + budget.draft_tokens)
    per_slot = geometry.slot_bytes * (1 + Fraction(budget.draft_tokens) / budget.slots_per_request)
    slots = 0
    while padding + (slots + 1) * per_slot <= share:
        slots += 1
    return slots


def _rows_one_by_one(geometry: Geometry, budget: Budget, slots: int, drafts: int) -> int:
    left = budget.rest_bytes - (slots + 1 + drafts) * geometry.slot_bytes
    rows = 0
    while (rows + budget.page_size) * geometry.row_bytes <= left:
        rows += budget.page_size
    return rows


def _by_ratio(geometry: Geometry, budget: Budget, ratio: Fraction) -> PoolSizes | None:
    try:
        return split_by_ratio(geometry, budget, ratio)
    except CapacityError:
        return None


@settings(max_examples=100, deadline=None)
@given(geometries(), budgets(), RATIOS)
def test_split_equals_counting_one_by_one(
    geometry: Geometry, budget: Budget, ratio: Fraction
) -> None:
    pools = _by_ratio(geometry, budget, ratio)
    slots = _slots_one_by_one(geometry, budget, ratio)
    requests = min(budget.max_running_requests or slots, slots // budget.slots_per_request)
    drafts = (requests + 1) * budget.draft_tokens
    rows = _rows_one_by_one(geometry, budget, slots, drafts)
    if pools is None:
        assert slots == 0 or rows == 0
    else:
        assert (pools.state_slots, pools.kv_tokens) == (slots, rows)


@settings(max_examples=100, deadline=None)
@given(geometries(), budgets(), RATIOS)
def test_pinning_the_slots_of_a_ratio_gives_the_same_pools(
    geometry: Geometry, budget: Budget, ratio: Fraction
) -> None:
    pools = _by_ratio(geometry, budget, ratio)
    assume(pools is not None)
    assert pools is not None
    assert split_pinned(geometry, budget, pools.state_slots) == pools


@settings(max_examples=100, deadline=None)
@given(geometries(), budgets(), RATIOS)
def test_pools_without_their_padding_page_never_exceed_the_budget(
    geometry: Geometry, budget: Budget, ratio: Fraction
) -> None:
    pools = _by_ratio(geometry, budget, ratio)
    assume(pools is not None)
    assert pools is not None
    used = pools.state_bytes + pools.draft_bytes + pools.kv_tokens * geometry.row_bytes
    page_bytes = geometry.row_bytes * budget.page_size
    assert used <= budget.rest_bytes < used + page_bytes


@settings(max_examples=100, deadline=None)
@given(geometries(), budgets(), RATIOS)
def test_cap_never_exceeds_what_both_pools_hold(
    geometry: Geometry, budget: Budget, ratio: Fraction
) -> None:
    pools = _by_ratio(geometry, budget, ratio)
    assume(pools is not None)
    assert pools is not None
    asked = budget.max_running_requests
    try:
        cap = running_cap(pools, asked)
    except CapacityError:
        assert pools.kv_tokens < 2 or pools.state_slots < pools.slots_per_request
        return
    assert 1 <= cap.value <= (asked or 4096)
    assert cap.value * pools.slots_per_request <= pools.state_slots
    assert cap.value * 2 <= pools.kv_tokens
    if pools.draft_tokens:
        assert pools.draft_requests >= cap.value


@settings(max_examples=100, deadline=None)
@given(geometries(), budgets(), RATIOS, RATIOS)
def test_more_ratio_never_means_fewer_slots(
    geometry: Geometry, budget: Budget, one: Fraction, other: Fraction
) -> None:
    low, high = sorted((one, other))
    small, large = _by_ratio(geometry, budget, low), _by_ratio(geometry, budget, high)
    if small and large:
        assert small.state_slots <= large.state_slots
        assert small.kv_tokens >= large.kv_tokens
