"""Allocators: runs stay together, nothing is given twice, nothing is given back twice."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots
from twinpool.memory.allocator import RUN_ROWS, RowAllocator, SlotAllocator


def runs_of(rows: np.ndarray) -> list[np.ndarray]:
    """Cut rows where they stop following each other."""
    return np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)


def test_rows_come_in_whole_aligned_runs_while_there_are_any():
    allocator = RowAllocator(160)
    first = allocator.allocate(1)
    assert len(first) == RUN_ROWS
    second = allocator.allocate(40)
    assert len(second) == 48
    for rows in (first, second):
        starts = rows[::RUN_ROWS]
        # Row 0 is the padding sink, so runs begin behind it.
        assert ((starts - 1) % RUN_ROWS == 0).all()
        assert (rows.reshape(-1, RUN_ROWS) - starts[:, None] == np.arange(RUN_ROWS)).all()


def test_never_more_than_one_run_above_what_was_asked():
    allocator = RowAllocator(1024)
    for asked in (1, 15, 16, 17, 100):
        assert asked <= len(allocator.allocate(asked)) < asked + RUN_ROWS


def test_runs_that_were_freed_together_are_handed_out_in_order():
    allocator = RowAllocator(256)
    taken = [allocator.allocate(16) for _ in range(16)]
    allocator.free(np.concatenate(taken[4:9][::-1]))
    again = allocator.allocate(80)
    assert len(runs_of(again)) == 1


def test_broken_runs_are_used_only_when_no_whole_run_is_left():
    allocator = RowAllocator(48)
    first, second, _ = (allocator.allocate(16) for _ in range(3))
    allocator.free(first[3:7].copy())
    allocator.free(second)
    assert set(allocator.allocate(5).tolist()) == set(second.tolist())
    rest = allocator.allocate(4)
    assert set(rest.tolist()) == set(first[3:7].tolist())
    assert allocator.num_free == 0


def test_a_run_becomes_whole_again_when_all_of_it_is_back():
    allocator = RowAllocator(32)
    rows = allocator.allocate(16)
    allocator.allocate(16)
    allocator.free(rows[:5].copy())
    allocator.free(rows[5:].copy())
    assert len(runs_of(allocator.allocate(1))) == 1
    assert allocator.num_free == 0


def test_a_short_last_run_is_not_lost():
    allocator = RowAllocator(20)
    assert sorted(allocator.allocate(20).tolist()) == list(range(1, 21))


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_pages_are_given_whole_and_behind_the_sink(page_size):
    allocator = RowAllocator(page_size * 40, page_size=page_size)
    rows = allocator.allocate(3)
    assert len(rows) % page_size == 0
    pages = rows.reshape(-1, page_size)
    assert (pages[:, 0] % page_size == 0).all()
    assert (pages[:, 0] >= page_size).all()
    assert (np.diff(pages, axis=1) == 1).all()


def test_too_many_rows_are_refused_with_the_numbers_and_nothing_is_taken():
    allocator = RowAllocator(32)
    allocator.allocate(16)
    with pytest.raises(OutOfRows) as error:
        allocator.allocate(17)
    assert (error.value.needed, error.value.free) == (17, 16)
    assert allocator.num_free == 16


def test_double_free_raises_and_changes_nothing():
    allocator = RowAllocator(32)
    rows = allocator.allocate(16)
    allocator.free(rows)
    with pytest.raises(InvariantError, match="not in use"):
        allocator.free(rows[:1].copy())
    assert allocator.num_free == 32


def test_a_row_twice_in_one_call_raises():
    allocator = RowAllocator(32)
    rows = allocator.allocate(16)
    with pytest.raises(InvariantError, match="not in use"):
        allocator.free(np.array([rows[0], rows[1], rows[0]], dtype=np.int32))
    assert allocator.num_free == 16


@pytest.mark.parametrize("row", [0, -1, 33, 10**6])
def test_rows_outside_the_pool_are_refused(row):
    allocator = RowAllocator(32)
    allocator.allocate(32)
    with pytest.raises(InvariantError):
        allocator.free(np.array([row], dtype=np.int32))


def test_part_of_a_page_is_refused():
    allocator = RowAllocator(32, page_size=4)
    rows = allocator.allocate(16)
    for part in (rows[:3], rows[1:5], rows[[0, 1, 2, 7]]):
        with pytest.raises(InvariantError, match="whole pages"):
            allocator.free(part.copy())


def test_freeing_does_not_touch_the_callers_array():
    allocator = RowAllocator(64)
    rows = allocator.allocate(32)[::-1].copy()
    before = rows.copy()
    allocator.free(rows)
    assert (rows == before).all()


@pytest.mark.parametrize(("capacity", "page_size"), [(10, 4), (-1, 1), (8, 0), (8, -4)])
def test_pools_that_are_not_whole_pages_are_refused(capacity, page_size):
    with pytest.raises(ConfigError):
        RowAllocator(capacity, page_size=page_size)


def test_slots_come_once_each_and_never_the_sink():
    allocator = SlotAllocator(5)
    slots = [allocator.allocate() for _ in range(5)]
    assert sorted(slots) == [1, 2, 3, 4, 5]
    with pytest.raises(OutOfSlots):
        allocator.allocate()
    assert allocator.num_free == 0


@pytest.mark.parametrize("slot", [0, -1, 6, 3])
def test_slots_that_are_not_in_use_are_refused(slot):
    allocator = SlotAllocator(5)
    taken = [allocator.allocate() for _ in range(5)]
    allocator.free(3)
    assert 3 in taken
    with pytest.raises(InvariantError):
        allocator.free(slot)
    assert allocator.num_free == 1


def test_negative_pools_are_refused():
    with pytest.raises(ConfigError):
        SlotAllocator(-1)
