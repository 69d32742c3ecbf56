"""Pools: every layer has its own bytes, padding is there, actions touch one slot."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import numpy as np
import pytest

from pool_spec import FULL, SPEC
from twinpool.engine.pools import ALIGNMENT, Pools
from twinpool.errors import ConfigError
from twinpool.kernels.views import KvView, StateView
from twinpool.scheduling.plan import CopyState, ZeroState
from twinpool.spec.geometry import geometry_of
from twinpool.spec.model import ModelSpec
from twinpool.units import DType


def _spec(dtype: DType) -> ModelSpec:
    return dataclasses.replace(SPEC, dtype=dtype)


def _pools(dtype: DType = DType.FLOAT32, **options: bool | int) -> Pools:
    spec = _spec(dtype)
    settings = {"num_rows": 10, "num_slots": 4, **options}
    return Pools(spec, geometry_of(spec), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_layers_share_no_byte_of_a_row_or_a_slot_and_leave_none_out(dtype: DType) -> None:
    pools = _pools(dtype)
    for view in pools.views:
        if isinstance(view, KvView):
            keys = view.num_heads * view.key_width
            values = view.num_heads * view.value_width
            view.pool[3, view.k_offset : view.k_offset + keys] += 1
            view.pool[3, view.v_offset : view.v_offset + values] += 1
        else:
            conv = (view.conv_width - 1) * view.conv_channels
            cells = view.num_value_heads * view.key_width * view.value_width
            view.conv[2, view.conv_offset : view.conv_offset + conv] += 1
            view.recurrent[2, view.recurrent_offset : view.recurrent_offset + cells] += 1
    kv = next(view for view in pools.views if isinstance(view, KvView)).pool
    state = next(view for view in pools.views if isinstance(view, StateView))
    assert (kv[3] == 1).all()
    conv_type, item = state.conv.dtype, geometry_of(_spec(dtype)).conv_dtype.itemsize
    slot = pools.slot_bytes_of(2)
    recurrent_bytes = pools.geometry.recurrent_bytes
    assert (slot[:recurrent_bytes].view(np.float32) == 1).all()
    assert (slot[recurrent_bytes:].view(conv_type) == 1).all()
    assert len(slot) == pools.geometry.slot_bytes
    assert len(slot[recurrent_bytes:]) // item == 3 * 3 * (5 + 5 + 9)
    # Nothing spills into the neighbours.
    for row in (2, 4):
        assert not pools.row_bytes_of(row).any()
    for other in (1, 3):
        assert not pools.slot_bytes_of(other).any()


def test_padding_comes_on_top_of_the_capacity() -> None:
    pools = _pools(page_size=4)
    row_bytes = pools.geometry.row_bytes
    stride = -(-pools.geometry.slot_bytes // ALIGNMENT) * ALIGNMENT
    assert pools.kv_bytes == (10 + 4) * row_bytes
    assert pools.state_bytes == (4 + 1) * stride
    pools.row_bytes_of(13)
    pools.slot_bytes_of(4)


def test_memory_is_aligned() -> None:
    state = next(view for view in _pools().views if isinstance(view, StateView))
    assert state.recurrent.ctypes.data % ALIGNMENT == 0
    assert state.recurrent.strides[0] % ALIGNMENT == 0


def test_actions_are_carried_out_in_order_on_the_named_slots_only() -> None:
    pools = _pools(poison=True)
    pools.apply([ZeroState(1), CopyState(1, 3), CopyState(2, 1)])
    assert not pools.slot_bytes_of(3).any()
    for slot in (1, 2, 4):
        assert (pools.slot_bytes_of(slot) == 0xFF).all()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_poisoned_memory_reads_as_nan(dtype: DType) -> None:
    pools = _pools(dtype, poison=True)
    for view in pools.views:
        arrays = [view.pool] if isinstance(view, KvView) else [view.conv, view.recurrent]
        for array in arrays:
            if array.dtype == np.uint16:
                array = (array.astype(np.uint32) << 16).view(np.float32)
            assert np.isnan(array).all()


def test_only_the_named_units_are_poisoned() -> None:
    pools = _pools()
    pools.poison_rows(np.array([2, 7], np.int32))
    pools.poison_slots(np.array([3], np.int32))
    rows = [row for row in range(11) if pools.row_bytes_of(row).any()]
    slots = [slot for slot in range(5) if pools.slot_bytes_of(slot).any()]
    assert (rows, slots) == ([2, 7], [3])


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_is_committed_as_it_is_touched() -> None:
    spec = _spec(DType.FLOAT32)
    before = _resident_bytes()
    pools = Pools(spec, geometry_of(spec), num_rows=2**23, num_slots=2**16)
    pools.apply([ZeroState(2**16)])
    assert not pools.slot_bytes_of(2**16).any()
    assert pools.kv_bytes > 2**30
    assert _resident_bytes() - before < 2**28


def test_memory_that_cannot_be_had_is_an_error_with_its_size() -> None:
    spec = _spec(DType.FLOAT32)
    with pytest.raises(ConfigError, match=r"TiB of pool memory cannot be had"):
        Pools(spec, geometry_of(spec), num_rows=2**50, num_slots=1)


@pytest.mark.parametrize(
    "dtypes",
    [{"state_dtype": DType.BFLOAT16}, {"kv_dtype": DType.FP8}, {"kv_dtype": DType.FLOAT16}],
)
def test_dtypes_that_no_kernel_reads_are_refused(dtypes: dict[str, DType]) -> None:
    with pytest.raises(ConfigError, match="cannot be kept in"):
        Pools(SPEC, geometry_of(SPEC, **dtypes), num_rows=4, num_slots=2)


def test_a_model_without_linear_layers_has_an_empty_state_pool() -> None:
    spec = dataclasses.replace(SPEC, layers=(FULL, FULL))
    pools = Pools(spec, geometry_of(spec), num_rows=4, num_slots=0)
    assert pools.state_bytes == 0
    assert len(pools.views) == 2
