"""Pools in an arena: a slot is a run of rows, moves copy rows, and a model sees no difference."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from model_runs import Bench
from pool_spec import SPEC
from tiny_models import build, qwen3_5_config, random_tokens, save
from twinpool.engine.pools import ALIGNMENT, Pools
from twinpool.errors import ConfigError
from twinpool.kernels.views import KvView, StateView
from twinpool.memory.arena import Arena, rows_per_slot
from twinpool.models.decoder import Decoder
from twinpool.models.load import load_model
from twinpool.scheduling.plan import CheckpointWrite, CopyState, MoveRows, ZeroState
from twinpool.spec.geometry import geometry_of
from twinpool.spec.model import ModelSpec
from twinpool.units import DType

DTYPES = pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])


def _arena_pools(
    spec: ModelSpec = SPEC, *, num_frames: int = 4, page_size: int = 1, poison: bool = False
) -> tuple[Pools, int]:
    geometry = geometry_of(spec)
    n = rows_per_slot(geometry.slot_bytes, geometry.row_bytes, page_size)
    pools = Pools(
        spec,
        geometry,
        num_rows=num_frames * n,
        num_slots=num_frames,
        page_size=page_size,
        poison=poison,
        rows_per_slot=n,
    )
    return pools, n


def _pattern(pools: Pools, rows: list[int]) -> None:
    """Fill rows with numbers of their own, through the views of the layers."""
    kv = next(view for view in pools.views if isinstance(view, KvView)).pool
    for row in rows:
        kv[row] = row + 1


def _bytes(pools: Pools, rows: list[int]) -> list[bytes]:
    return [pools.row_bytes_of(row).tobytes() for row in rows]


@DTYPES
@pytest.mark.parametrize("page_size", [1, 8])
def test_a_slot_is_the_rows_of_its_frame(dtype: DType, page_size: int) -> None:
    pools, n = _arena_pools(dataclasses.replace(SPEC, dtype=dtype), page_size=page_size)
    pools.poison_slots(np.array([2], np.int32))
    written = [row for row in range(5 * n) if pools.row_bytes_of(row).any()]
    assert written == list(range(2 * n, 3 * n))
    pools.apply([ZeroState(2)])
    pools.poison_rows(np.arange(3 * n, 4 * n, dtype=np.int32))
    poisoned = [bool((pools.slot_bytes_of(slot) == 0xFF).all()) for slot in range(5)]
    assert poisoned == [False, False, False, True, False]


@DTYPES
def test_layers_write_inside_their_frame_only(dtype: DType) -> None:
    pools, n = _arena_pools(dataclasses.replace(SPEC, dtype=dtype))
    for view in pools.views:
        if isinstance(view, StateView):
            view.conv[2, view.conv_offset :] = 1
            view.recurrent[2, view.recurrent_offset :] = 1
    assert pools.slot_bytes_of(2).any()
    for row in (2 * n - 1, 3 * n):
        assert not pools.row_bytes_of(row).any()
    assert pools.views[0].table[1] == n * pools.geometry.row_bytes


@DTYPES
def test_slots_are_aligned_and_both_kinds_are_the_same_bytes(dtype: DType) -> None:
    pools, n = _arena_pools(dataclasses.replace(SPEC, dtype=dtype))
    state = next(view for view in pools.views if isinstance(view, StateView)).recurrent
    assert state.ctypes.data % ALIGNMENT == 0
    assert state.strides[0] % ALIGNMENT == 0
    assert pools.kv_bytes == pools.state_bytes == 5 * n * pools.geometry.row_bytes


def test_moves_copy_rows_in_the_order_of_actions() -> None:
    pools, n = _arena_pools()
    _pattern(pools, [n, n + 2, 2 * n])
    before = _bytes(pools, [n, n + 2, 2 * n])
    # The frame of the last source is a slot right after.
    pools.apply(
        [
            MoveRows(np.array([n, n + 2, 2 * n], np.int32), np.array([n + 9, n + 4, n + 5])),
            ZeroState(2),
            CopyState(2, 3),
        ]
    )
    assert _bytes(pools, [n + 9, n + 4, n + 5]) == before
    assert not pools.slot_bytes_of(2).any()
    assert _bytes(pools, [n, n + 2]) == before[:2]


def test_sources_of_a_move_are_poisoned_when_asked() -> None:
    pools, n = _arena_pools(poison=True)
    sources, targets = [n, n + 1], [2 * n, 2 * n + 5]
    _pattern(pools, sources)
    before = _bytes(pools, sources)
    pools.apply([MoveRows(np.array(sources, np.int32), np.array(targets, np.int32))])
    assert _bytes(pools, targets) == before
    for row in sources:
        assert (pools.row_bytes_of(row) == 0xFF).all()


def test_moves_work_in_static_pools_too() -> None:
    pools = Pools(SPEC, geometry_of(SPEC), num_rows=8, num_slots=2)
    _pattern(pools, [3])
    pools.apply([MoveRows(np.array([3], np.int32), np.array([5], np.int32))])
    assert _bytes(pools, [5]) == _bytes(pools, [3])
    assert pools.row_bytes_of(5).any()


@pytest.mark.parametrize(
    "change",
    [{"rows_per_slot": -1}, {"rows_per_slot": 1}, {"num_rows": 1}, {"page_size": 7}],
    ids=["too small", "not aligned", "counts differ", "not whole pages"],
)
def test_frames_that_hold_no_aligned_slot_are_refused(change: dict[str, int]) -> None:
    geometry = geometry_of(SPEC)
    n = rows_per_slot(geometry.slot_bytes, geometry.row_bytes, 8) + change.get("rows_per_slot", 0)
    with pytest.raises(ConfigError, match="no arena"):
        Pools(
            SPEC,
            geometry,
            num_rows=3 * n + change.get("num_rows", 0),
            num_slots=3,
            page_size=change.get("page_size", 8),
            rows_per_slot=n,
        )


def test_a_frame_too_small_for_a_slot_is_refused() -> None:
    geometry = geometry_of(SPEC)
    step = rows_per_slot(1, geometry.row_bytes)
    assert step * geometry.row_bytes < geometry.slot_bytes
    with pytest.raises(ConfigError, match="no arena"):
        Pools(SPEC, geometry, num_rows=3 * step, num_slots=3, rows_per_slot=step)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("arena")
    return load_model(save(build(qwen3_5_config(), seed=3), folder))


class _ArenaBench(Bench):
    """A bench whose rows and slots come from an arena, poisoned wherever they are free."""

    def __init__(self, model: Decoder) -> None:
        super().__init__(model, num_rows=16, num_slots=1)
        self.pools, n = _arena_pools(model.spec, num_frames=8, poison=True)
        self.arena = Arena(8, n)
        self._slots = []
        self._rows = []

    def slot(self) -> int:
        return self.arena.slots.allocate()


def test_moved_rows_change_no_bit_of_a_request_that_reads_them(model: Decoder) -> None:
    tokens = random_tokens(40, seed=9)
    straight = Bench(model).alone(tokens)

    bench = _ArenaBench(model)
    n = bench.arena.rows_per_slot
    # Two frames of rows, both with holes: 40 of ours at the head of the second.
    filler = bench.arena.rows.allocate(n)
    bench._rows = bench.arena.rows.allocate(n)[:40][::-1].tolist()
    first = bench.start(tokens, depths=(30,))
    bench.arena.rows.free(filler[5:])
    bench.arena.rows.free(np.arange(2 * n + 40, 3 * n, dtype=np.int32))
    bench.step((first, 32))
    bench.arena.own(first.rows, 5)
    bench.arena.own(filler[:5], 6)

    moves = bench.arena.compact(lambda owner: owner == 5, 100)
    assert moves is not None
    assert moves.sources.tolist() == sorted(first.rows.tolist())
    bench.pools.apply([MoveRows(moves.sources, moves.targets)])
    became = dict(zip(moves.sources.tolist(), moves.targets.tolist(), strict=True))
    first.rows = np.array([became[row] for row in first.rows.tolist()], np.int32)
    # The frame that became free is a slot now, and is written over.
    slot = bench.slot()
    assert slot == int(moves.sources[0]) // n
    bench.pools.apply([CopyState(first.slot, slot)])
    bench.arena.slots.free(first.slot)
    bench.pools.poison_slots(np.array([first.slot], np.int32))
    first.slot = slot
    assert torch.equal(bench.step((first, 8))[0], straight[32:])

    write = CheckpointWrite(30, first.checkpoints[0].slot)
    bench._rows = bench.arena.rows.allocate(16).tolist()
    again = bench.resume(first, write, tokens)
    assert torch.equal(bench.step((again, 10))[0], straight[30:])
