"""Pools printed as boot lines, with noise around, give their bytes back within the error."""

from __future__ import annotations

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from twinpool.memory.boot_log import boot_lines, kv_line, state_line
from twinpool.memory.boots import read_boot_log
from twinpool.memory.recover import Interval, Reserve, mismatches, recover, split_again
from twinpool.memory.running_cap import running_cap
from twinpool.memory.sizing import Budget, PoolSizes, split_pinned
from twinpool.spec.geometry import Geometry
from twinpool.units import DType

NOISE = st.text(alphabet=string.ascii_letters + string.digits + " []=:,.\x1b\t", max_size=60)
AROUND = st.sampled_from(
    [
        "{}",
        "[2026-09-01 10:00:00 {rank}] {}",
        "\x1b[33m[2026-09-01 10:00:00 {rank}]\x1b[0m {}\x1b[K",
        "pod-0 | 2026-09-01T10:00:00Z stdout F [10:00:00 {rank}] {}",
        '{{"log":"[10:00:00 {rank}] {}\\n","stream":"stdout"}}',
    ]
)
GEOMETRIES = st.builds(
    Geometry,
    key_bytes=st.integers(64, 200_000),
    value_bytes=st.just(0) | st.integers(64, 200_000),
    conv_bytes=st.just(0) | st.integers(1000, 10_000_000),
    recurrent_bytes=st.integers(100_000, 200_000_000),
    kv_dtype=st.sampled_from([DType.BFLOAT16, DType.FP8]),
    conv_dtype=st.just(DType.BFLOAT16),
    state_dtype=st.just(DType.FLOAT32),
    tp=st.just(1),
    num_full_layers=st.just(1),
    num_linear_layers=st.just(1),
)


@st.composite
def pool_sizes(draw: st.DrawFn) -> PoolSizes:
    geometry = draw(GEOMETRIES)
    slots = draw(st.integers(1, 800))
    page = draw(st.sampled_from([1, 16, 64, 256]))
    drafts = draw(st.sampled_from([0, 0, 3]))
    tokens = page * draw(st.integers(1, 40_000))
    per_request = draw(st.integers(1, 5))
    asked = draw(st.integers(1, 200))
    requests = min(asked, slots // per_request)
    held = slots + 1 + ((requests + 1) * drafts if drafts else 0)
    budget = Budget(
        rest_bytes=held * geometry.slot_bytes + tokens * geometry.row_bytes,
        page_size=page,
        slots_per_request=per_request,
        draft_tokens=drafts,
        max_running_requests=asked,
    )
    return split_pinned(geometry, budget, slots)


@settings(max_examples=300, deadline=None)
@given(pool_sizes(), AROUND, st.lists(NOISE, max_size=4), st.integers(1, 3), st.booleans())
def test_the_recovered_interval_holds_the_true_bytes(
    pools: PoolSizes, around: str, noise: list[str], num_ranks: int, knows_page: bool
) -> None:
    # A cap of 0 is an error of its own; the lines of the pools are what is read here.
    fits = pools.state_slots >= pools.slots_per_request and pools.kv_tokens >= 2
    cap = running_cap(pools, 10**6) if fits else None
    lines = boot_lines(pools, cap) if cap else _pool_lines(pools)
    ranks = [f"TP{number}" for number in range(num_ranks if "{rank}" in around else 1)]
    text = [*noise]
    for line in lines:
        text += [around.format(line, rank=rank) for rank in ranks] + noise
    log = read_boot_log(text, "x.log")
    assert log.num_boots == 1
    assert len(log.boot.ranks) == len(ranks)
    rank = log.boot.ranks[-1]
    found = recover(rank, pools.page_size if knows_page else None)
    geometry = pools.geometry
    assert (found.state_slots, found.kv_tokens) == (pools.state_slots, pools.kv_tokens)
    assert geometry.conv_bytes in found.conv
    assert geometry.recurrent_bytes in found.recurrent
    assert geometry.row_bytes in found.row
    assert pools.page_size in found.page
    assert mismatches(found, geometry) == ()
    if cap is not None:
        assert rank.cap is not None
        assert (rank.cap.value, rank.cap.pool) == (cap.value, cap.binds)


@settings(max_examples=200, deadline=None)
@given(pool_sizes(), st.integers(1, 900))
def test_other_splits_hold_what_the_true_bytes_give(pools: PoolSizes, slots: int) -> None:
    log = read_boot_log(_pool_lines(pools), "x.log")
    found = recover(log.boot.ranks[0], pools.page_size)
    geometry = pools.geometry
    # Only where the log is precise and the split is possible at every end of the interval.
    if found.row.low < 1 or slots > pools.state_slots:
        slots = pools.state_slots
    if found.row.low < 1:
        return
    reserve = Reserve(slots_per_request=pools.slots_per_request)
    split = split_again(found, reserve, pinned_slots=slots)
    rest = (pools.state_slots + 1) * geometry.slot_bytes + pools.kv_tokens * geometry.row_bytes
    true = split_pinned(geometry, Budget(rest_bytes=rest, page_size=pools.page_size), slots)
    assert true.kv_tokens in Interval(split.tokens.low, split.tokens.high)


def _pool_lines(pools: PoolSizes) -> tuple[str, str]:
    """The state line and the KV line, as a server without a cap prints them."""
    return state_line(pools), kv_line(pools)
