"""The arena: frames stay whole as long as they can, and become whole again by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots
from twinpool.memory.allocator import RUN_ROWS
from twinpool.memory.arena import MAX_LOOKS, UNNAMED, Arena, rows_per_slot


def frames_of(arena: Arena, rows: np.ndarray) -> set[int]:
    return set((rows // arena.rows_per_slot).tolist())


def rows_in(arena: Arena, frame: int, count: int, start: int = 0) -> np.ndarray:
    """Return some rows of a frame."""
    first = frame * arena.rows_per_slot + start
    return np.arange(first, first + count, dtype=np.int32)


def filled(num_frames: int, n: int, *, page_size: int = 1, kept: dict[int, int]) -> Arena:
    """Return an arena of KV frames; of those in `kept` only so many rows stay in use.

    Owner of every row: the number of its frame.
    """
    arena = Arena(num_frames, n, page_size)
    arena.rows.allocate(num_frames * n)
    for frame in range(1, num_frames + 1):
        arena.own(rows_in(arena, frame, n), frame)
    for frame, count in kept.items():
        arena.rows.free(rows_in(arena, frame, n - count, start=count))
    return arena


def test_a_slot_is_a_frame_and_nothing_is_given_of_the_sink():
    arena = Arena(3, 5)
    slots = {arena.slots.allocate() for _ in range(2)}
    rows = arena.rows.allocate(5)
    assert slots | frames_of(arena, rows) == {1, 2, 3}
    assert (arena.rows.num_free, arena.slots.num_free) == (0, 0)
    assert not arena.rows.free_mask().any()
    assert not arena.slots.free_mask().any()


def test_rows_and_slots_draw_on_the_same_frames():
    arena = Arena(4, 16)
    assert (arena.rows.num_free, arena.slots.num_free) == (64, 4)
    arena.slots.allocate()
    arena.rows.allocate(1)
    assert (arena.rows.num_free, arena.slots.num_free) == (32, 2)
    assert (arena.rows.capacity, arena.slots.capacity) == (64, 4)


def test_a_frame_without_rows_is_free_at_once():
    arena = Arena(1, 40)
    rows = arena.rows.allocate(40)
    arena.rows.free(rows[:39])
    with pytest.raises(OutOfSlots):
        arena.slots.allocate()
    arena.rows.free(rows[39:])
    assert arena.slots.allocate() == 1


def test_rows_come_in_aligned_runs_while_there_are_any():
    arena = Arena(2, 64)
    first = arena.rows.allocate(1)
    assert len(first) == RUN_ROWS
    second = arena.rows.allocate(40)
    assert len(second) == 48
    for rows in (first, second):
        assert (rows.reshape(-1, RUN_ROWS) % RUN_ROWS == np.arange(RUN_ROWS)).all()
    assert arena.slots.num_free == 1


def test_whole_runs_come_before_single_rows_of_fuller_frames():
    arena = filled(2, 32, kept={1: 31, 2: 16})
    assert frames_of(arena, arena.rows.allocate(1)) == {2}
    assert arena.rows.allocate(1).tolist() == [63]


def test_the_fullest_frame_gives_first():
    arena = filled(3, 64, kept={1: 16, 2: 48, 3: 32})
    assert frames_of(arena, arena.rows.allocate(16)) == {2}
    assert frames_of(arena, arena.rows.allocate(16)) == {3}
    single = filled(3, 10, kept={1: 1, 2: 8, 3: 4})
    assert single.rows.allocate(7).tolist() == [28, 29, 34, 35, 36, 37, 38]


def test_free_frames_stay_whole_while_broken_ones_have_rows():
    arena = Arena(3, 24)
    rows = arena.rows.allocate(24)
    arena.rows.free(rows[::2].copy())
    assert frames_of(arena, arena.rows.allocate(12)) == frames_of(arena, rows)
    assert arena.slots.num_free == 2
    assert frames_of(arena, arena.rows.allocate(1)).isdisjoint(frames_of(arena, rows))


def test_no_more_frames_are_opened_than_needed():
    arena = Arena(20, 100)
    arena.rows.allocate(150)
    assert arena.slots.num_free == 18
    arena.rows.allocate(16 * 100 + 32)
    assert arena.slots.num_free == 2


@pytest.mark.parametrize("page_size", [1, 4, 16, 32])
def test_never_one_run_above_what_was_asked_and_pages_whole(page_size):
    arena = Arena(30, 96, page_size)
    for asked in (1, 15, 16, 17, 100, 300):
        rows = arena.rows.allocate(asked)
        assert asked <= len(rows) < asked + max(RUN_ROWS, page_size)
        pages = rows.reshape(-1, page_size)
        assert (pages[:, 0] % page_size == 0).all()
        assert (np.diff(pages, axis=1) == 1).all()


def test_rows_that_are_not_there_are_refused_and_nothing_is_taken():
    arena = Arena(2, 10)
    arena.slots.allocate()
    arena.rows.allocate(3)
    free = arena.rows.free_mask()
    with pytest.raises(OutOfRows) as caught:
        arena.rows.allocate(11)
    assert (caught.value.needed, caught.value.free) == (11, int(free.sum()))
    assert np.array_equal(arena.rows.free_mask(), free)
    with pytest.raises(OutOfSlots):
        arena.slots.allocate()


def test_wrong_rows_are_refused_and_nothing_changes():
    arena = Arena(3, 8, 4)
    rows = arena.rows.allocate(8)
    slot = arena.slots.allocate()
    arena.rows.free(rows[4:])
    wrong = {
        "free already": rows,
        "twice": np.concatenate([rows[:4], rows[:4]]),
        "half a page": rows[:2],
        "not consecutive": rows[:4][::-1].copy(),
        "not aligned": rows[:4] + np.int32(1),
        "of a slot": rows_in(arena, slot, 4),
        "of a slot, beside good ones": np.concatenate([rows[:4], rows_in(arena, slot, 4)]),
        "of a free frame": rows_in(arena, 3, 4),
        "of the sink": rows_in(arena, 0, 4),
        "outside": rows_in(arena, 4, 4),
        "negative": rows_in(arena, -1, 4),
    }
    before = arena.rows.free_mask(), arena.rows.num_free, arena.slots.num_free
    for name, given in wrong.items():
        with pytest.raises(InvariantError):
            arena.rows.free(given)
        assert np.array_equal(arena.rows.free_mask(), before[0]), name
        assert (arena.rows.num_free, arena.slots.num_free) == before[1:], name
    arena.rows.free(rows[:4])
    arena.rows.free(np.empty(0, np.int32))


@pytest.mark.parametrize("slot", [-1, 0, 2, 3, 4, 9])
def test_slots_that_are_not_in_use_are_refused(slot):
    arena = Arena(4, 6)
    assert arena.slots.allocate() == 1
    assert frames_of(arena, arena.rows.allocate(1)) == {2}
    with pytest.raises(InvariantError):
        arena.slots.free(slot)
    arena.slots.free(1)
    with pytest.raises(InvariantError):
        arena.slots.free(1)
    assert arena.slots.num_free == 3


def test_rows_are_nobodys_to_move_until_they_are_owned():
    arena = Arena(2, 10)
    rows = arena.rows.allocate(10)
    arena.own(rows[:4], 7)
    found, owners = arena.owners(int(rows[0]) // 10)
    assert found.tolist() == rows.tolist()
    assert owners.tolist() == [7] * 4 + [UNNAMED] * 6
    arena.rows.free(rows)
    again = arena.rows.allocate(10)
    assert (arena.owners(int(again[0]) // 10)[1] == UNNAMED).all()


def test_only_rows_in_use_are_owned():
    arena = Arena(3, 8)
    rows = arena.rows.allocate(8)
    arena.rows.free(rows[:2])
    slot = arena.slots.allocate()
    for wrong in (rows, rows_in(arena, slot, 1), rows_in(arena, 0, 1), rows_in(arena, 4, 1)):
        with pytest.raises(InvariantError):
            arena.own(wrong, 1)
    arena.own(np.empty(0, np.int32), 1)
    assert (arena.owners(int(rows[0]) // 8)[1] == UNNAMED).all()
    assert len(arena.owners(slot)[0]) == 0


def test_compaction_empties_the_frame_with_the_fewest_rows():
    arena = filled(4, 32, kept={1: 20, 2: 5, 3: 8})
    moves = arena.compact(lambda owner: True, 100)
    assert moves is not None
    assert moves.sources.tolist() == rows_in(arena, 2, 5).tolist()
    assert (moves.owners == 2).all()
    assert arena.slots.free_mask().nonzero()[0].tolist() == [2]
    # The fullest of the others takes them.
    assert frames_of(arena, moves.targets) == {1}
    rows, owners = arena.owners(1)
    assert owners[np.isin(rows, moves.targets)].tolist() == [2] * 5


def test_compaction_keeps_runs_together():
    arena = filled(2, 64, kept={1: 20, 2: 16})
    moves = arena.compact(lambda owner: True, 100)
    assert moves is not None
    assert moves.targets.tolist() == list(range(64 + 32, 64 + 48))


def test_whole_pages_move():
    arena = filled(3, 16, page_size=4, kept={1: 8, 2: 4})
    assert arena.compact(lambda owner: True, 3) is None
    moves = arena.compact(lambda owner: True, 5)
    assert moves is not None
    assert moves.sources.tolist() == [32, 33, 34, 35]
    assert moves.targets.tolist() == [24, 25, 26, 27]


def test_rows_that_may_not_move_stay():
    arena = filled(3, 16, kept={1: 3, 2: 5, 3: 9})
    arena.own(rows_in(arena, 1, 1), UNNAMED)
    asked: list[int] = []

    def is_movable(owner: int) -> bool:
        asked.append(owner)
        return owner == 3

    moves = arena.compact(is_movable, 100)
    assert moves is not None
    assert set(moves.owners.tolist()) == {3}
    assert asked == [2, 3]


def test_a_full_frame_can_move_into_others():
    arena = filled(3, 8, kept={1: 4, 2: 4})
    moves = arena.compact(lambda owner: owner == 3, 100)
    assert moves is not None
    assert frames_of(arena, moves.targets) == {1, 2}
    assert arena.slots.free_mask().nonzero()[0].tolist() == [3]


def test_nothing_moves_that_is_too_much_or_has_no_room():
    arena = filled(2, 16, kept={1: 10, 2: 6})
    assert arena.compact(lambda owner: True, 5) is None
    assert arena.compact(lambda owner: True, 6) is not None
    # One frame is free now, the other full: nothing may be moved into a free one.
    assert arena.compact(lambda owner: True, 100) is None
    tight = filled(2, 16, kept={1: 10, 2: 7})
    assert tight.compact(lambda owner: True, 100) is None
    assert Arena(3, 4).compact(lambda owner: True, 100) is None
    assert Arena(0, 4).compact(lambda owner: True, 100) is None


def test_compaction_looks_at_a_bounded_number_of_frames():
    num = MAX_LOOKS + 10
    arena = filled(num, 8, kept=dict.fromkeys(range(1, num + 1), 3))
    asked: list[int] = []
    assert arena.compact(lambda owner: bool(asked.append(owner)), 100) is None
    assert len(asked) == MAX_LOOKS


def test_a_move_can_be_repeated_until_frames_are_whole():
    arena = filled(40, 16, kept=dict.fromkeys(range(1, 41), 4))
    while arena.compact(lambda owner: True, 4) is not None:
        pass
    assert arena.slots.num_free == 30
    assert arena.rows.num_free == 30 * 16


@pytest.mark.parametrize(("frames", "n", "page"), [(-1, 4, 1), (2, 0, 1), (2, 4, 0), (2, 6, 4)])
def test_frames_are_whole_pages(frames, n, page):
    with pytest.raises(ConfigError, match="not whole pages"):
        Arena(frames, n, page)


@pytest.mark.parametrize("slot_bytes", [1, 100, 4096, 4097, 75_497_472])
@pytest.mark.parametrize("row_bytes", [2, 16, 64, 96, 1000, 24_576])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_a_frame_is_the_fewest_rows_that_hold_an_aligned_slot(slot_bytes, row_bytes, page_size):
    def fits(n: int) -> bool:
        size = n * row_bytes
        return size >= slot_bytes and size % 64 == 0 and n % page_size == 0

    n = rows_per_slot(slot_bytes, row_bytes, page_size)
    assert fits(n)
    # Nothing smaller fits: the next smaller aligned one is at most 32 pages lower.
    assert not any(fits(less) for less in range(max(1, n - 32 * page_size), n))


@pytest.mark.parametrize("numbers", [(0, 8), (8, 0), (8, 8, 0)])
def test_models_of_one_kind_have_no_arena(numbers):
    with pytest.raises(ConfigError, match="do not share an arena"):
        rows_per_slot(*numbers)
