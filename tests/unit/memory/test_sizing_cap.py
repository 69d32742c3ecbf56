"""The cap on running requests, and the slots that one of them reserves."""

from __future__ import annotations

import dataclasses

import pytest

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.running_cap import SlotStrategy, running_cap, slots_per_request
from twinpool.memory.sizing import PoolSizes
from twinpool.spec.geometry import Geometry
from twinpool.units import DType

GEOMETRY = Geometry(
    key_bytes=4,
    value_bytes=4,
    conv_bytes=30,
    recurrent_bytes=70,
    kv_dtype=DType.BFLOAT16,
    conv_dtype=DType.BFLOAT16,
    state_dtype=DType.FLOAT32,
    tp=1,
    num_full_layers=1,
    num_linear_layers=1,
)


def _pools(slots: int = 40, tokens: int = 1000, per_request: int = 5) -> PoolSizes:
    return PoolSizes(
        geometry=GEOMETRY,
        rest_bytes=10**6,
        page_size=1,
        slots_per_request=per_request,
        draft_tokens=0,
        state_slots=slots,
        kv_tokens=tokens,
        fitting_tokens=tokens,
        draft_requests=0,
    )


@pytest.mark.parametrize(
    ("pools", "asked", "value", "binds"),
    [
        (_pools(), 3, 3, "asked"),
        (_pools(), 8, 8, "asked"),
        (_pools(), 9, 8, "state"),
        (_pools(), None, 8, "state"),
        (_pools(slots=44), None, 8, "state"),
        (_pools(tokens=15), 100, 7, "kv"),
        (_pools(tokens=15), None, 7, "kv"),
        (_pools(slots=10**6, tokens=10**6), None, 2048, "estimate"),
        (_pools(slots=10**6, tokens=10**6), 5000, 5000, "asked"),
    ],
)
def test_smallest_term_binds(pools: PoolSizes, asked: int | None, value: int, binds: str) -> None:
    cap = running_cap(pools, asked)
    assert (cap.value, cap.binds, cap.asked) == (value, binds, asked)
    assert cap.is_clamped == (asked is not None and asked > value)


@pytest.mark.parametrize(
    ("context", "value"), [(None, 2048), (10**6, 2048), (170_000, 3011), (1000, 4096)]
)
def test_estimate_follows_the_reference_engine(context: int | None, value: int) -> None:
    pools = _pools(slots=10**6, tokens=10**6)
    assert running_cap(pools, context_length=context).value == value


def test_model_without_linear_layers_is_capped_by_rows_alone() -> None:
    plain = dataclasses.replace(GEOMETRY, conv_bytes=0, recurrent_bytes=0, num_linear_layers=0)
    pools = dataclasses.replace(_pools(slots=0), geometry=plain)
    assert running_cap(pools, 700).value == 500


def test_too_few_slots_for_one_request_says_what_to_change() -> None:
    with pytest.raises(CapacityError) as caught:
        running_cap(_pools(slots=4))
    assert "holds 4 slots, and one request reserves 5" in caught.value.message
    assert "--max-mamba-cache-size" in caught.value.hint


def test_too_few_rows_for_one_request_says_what_to_change() -> None:
    with pytest.raises(CapacityError, match="holds 1 tokens"):
        running_cap(_pools(tokens=1))


@pytest.mark.parametrize("asked", [0, -4])
def test_asking_for_no_request_is_refused(asked: int) -> None:
    with pytest.raises(ConfigError, match="--max-running-requests"):
        running_cap(_pools(), asked)


@pytest.mark.parametrize(
    ("strategy", "overlap", "slots"),
    [
        ("direct", True, 1),
        ("direct", False, 1),
        ("extra_buffer", True, 5),
        ("extra_buffer", False, 4),
        ("extra_buffer_lazy", True, 4),
        ("no_buffer", False, 3),
        ("no_buffer", True, 3),
    ],
)
def test_slots_per_request(strategy: str, overlap: bool, slots: int) -> None:
    assert slots_per_request(strategy, overlap=overlap) == slots
    assert slots_per_request(SlotStrategy(strategy), overlap=overlap) == slots


@pytest.mark.parametrize("strategy", list(SlotStrategy))
@pytest.mark.parametrize("overlap", [True, False])
def test_cache_off_needs_the_working_state_alone(strategy: SlotStrategy, overlap: bool) -> None:
    assert slots_per_request(strategy, overlap=overlap, prefix_cache=False) == 1


def test_lazy_without_overlap_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs overlap"):
        slots_per_request("extra_buffer_lazy", overlap=False)


def test_unknown_strategy_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="direct, extra_buffer, extra_buffer_lazy, no_buffer"):
        slots_per_request("eager")
