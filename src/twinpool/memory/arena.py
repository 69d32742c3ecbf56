"""The arena: one memory of equal rows, of which a state slot takes an aligned frame.

Knows rows, slots and an owner's number for each row; not what an owner is, what could be evicted,
nor the bytes, which the caller has copied after a move.

    rows:    0 .. n-1 | n .. 2n-1  | 2n .. 3n-1        | ...
    frames:  0 (sink) | 1 = slot 1 | 2, broken: KV rows | 3, free: a slot or n rows | ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots
from twinpool.memory.allocator import RUN_ROWS, RowArray
from twinpool.memory.arena_frames import Frames, PageArray

OwnerArray = npt.NDArray[np.int32]

# The owner of rows that have been handed out and of which no owner was named: they are never moved.
UNNAMED = -1
# Where a slot may start, in bytes.
ALIGNMENT = 64
# Frames that one compaction looks at: their owners are asked one by one.
MAX_LOOKS = 16


def rows_per_slot(slot_bytes: int, row_bytes: int, page_size: int = 1) -> int:
    """Return the rows of a frame: the fewest whole pages that hold a slot and keep it aligned.

    Args:
        slot_bytes: Bytes of a state slot, 1 or more.
        row_bytes: Bytes of a row, 1 or more.
        page_size: Rows of a page, 1 or more.

    Raises:
        ConfigError: If the model has no rows or no states to put side by side.
    """
    if slot_bytes < 1 or row_bytes < 1 or page_size < 1:
        raise ConfigError(
            f"slots of {slot_bytes} bytes and rows of {row_bytes} in pages of {page_size} do not "
            "share an arena",
            hint="an arena is for models with both full and linear attention",
        )
    step = math.lcm(page_size, ALIGNMENT // math.gcd(row_bytes, ALIGNMENT))
    return -(-slot_bytes // (row_bytes * step)) * step


@dataclass(frozen=True, slots=True)
class Moves:
    """What one compaction moved.

    Attributes:
        sources: Rows that were in use and are free now, rising.
        targets: The row that each became.
        owners: Who owned each, and owns its target now.
    """

    sources: RowArray
    targets: RowArray
    owners: OwnerArray


class Arena:
    """Rows and slots out of one memory.

    Args:
        num_frames: Frames that can be handed out, without the sink; 0 or more.
        rows_per_slot: Rows of a frame, a multiple of `page_size`.
        page_size: Rows of a page; rows of one page are always given together.
        run_rows: Rows of a run, `RUN_ROWS` or fewer; a page where that is more.

    Attributes:
        rows: Hands out rows.
        slots: Hands out slots.

    Raises:
        ConfigError: If the numbers do not fit each other.
    """

    def __init__(
        self,
        num_frames: int,
        rows_per_slot: int,
        page_size: int = 1,
        *,
        run_rows: int = RUN_ROWS,
    ) -> None:
        if num_frames < 0 or page_size < 1 or rows_per_slot < 1 or rows_per_slot % page_size:
            raise ConfigError(
                f"{num_frames} frames of {rows_per_slot} rows are not whole pages of {page_size}",
                hint="make the rows of a slot a multiple of a positive page size",
            )
        self.rows_per_slot = rows_per_slot
        self.page_size = page_size
        self._frames = Frames(num_frames, rows_per_slot // page_size, max(1, run_rows // page_size))
        self._owners = np.full((num_frames + 1) * rows_per_slot, UNNAMED, dtype=np.int32)
        self.rows = ArenaRows(self._frames, self._owners, page_size)
        self.slots = ArenaSlots(self._frames)

    def own(self, rows: RowArray, owner: int) -> None:
        """Record who owns rows.

        Args:
            rows: Rows in use, in any order.
            owner: Its number; `UNNAMED` takes it back.

        Raises:
            InvariantError: If a row is not in use; nothing changes then.
        """
        if not len(rows):
            return
        is_inside = rows.min() >= 0 and rows.max() < len(self._owners)
        if not is_inside or not self._frames.are_used(rows // self.page_size):
            raise InvariantError(
                f"owner {owner} is given rows that are not in use",
                ledger={"rows": len(rows), "free": self.rows.num_free},
            )
        self._owners[rows] = owner

    def owners_of(self, rows: RowArray) -> OwnerArray:
        """Return who owns each of some rows in use."""
        return self._owners[rows]

    def owners(self, frame: int) -> tuple[RowArray, OwnerArray]:
        """Return the KV rows in use of a frame, rising, and who owns each."""
        rows = self.rows.rows_of(self._frames.used(frame))
        return rows, self._owners[rows]

    def compact(self, is_movable: Callable[[int], bool], max_rows: int) -> Moves | None:
        """Empty one frame into free rows of frames that hold KV already.

        Of the frames that fit, the one with the fewest rows in use whose owners can all be moved.

        Args:
            is_movable: Tells whether rows of an owner may move; not asked about `UNNAMED`, whose
                rows may not.
            max_rows: Rows to move at most.

        Returns:
            What moved; None when nothing can. The caller has the bytes copied before anyone else
            writes to a source, and puts the targets into its own lists.

        Changes:
            The targets are in use, the emptied frame is free, owners have gone along.

        Cost:
            O(frames) in numpy; at most `MAX_LOOKS` frames have their owners asked.
        """
        for frame in self._frames.emptiest(max_rows // self.page_size, MAX_LOOKS):
            owners = np.unique(self.owners(frame)[1]).tolist()
            if UNNAMED in owners or not all(map(is_movable, owners)):
                continue
            sources, targets = map(self.rows.rows_of, self._frames.move(frame))
            self._owners[targets] = self._owners[sources]
            return Moves(sources, targets, self._owners[targets])
        return None


class ArenaRows:
    """The KV rows of an arena, with the verbs of a `RowAllocator`.

    Args:
        frames: The arena's frames.
        owners: The owner of each row; written for rows that are handed out.
        page_size: Rows of a page.
    """

    def __init__(self, frames: Frames, owners: OwnerArray, page_size: int) -> None:
        self._frames = frames
        self._owners = owners
        self.page_size = page_size
        self.capacity = frames.num_frames * frames.pages_per_frame * page_size

    @property
    def num_free(self) -> int:
        """Rows that could be taken now, those of free frames included."""
        return self._frames.num_free_pages * self.page_size

    def allocate(self, num_rows: int) -> RowArray:
        """Take at least `num_rows` rows, rounded up to whole runs where whole runs are left.

        Runs of frames that hold rows already come first, then their single pages, the fullest frame
        first each time; free frames last, so that they stay whole for slots.

        Args:
            num_rows: Rows that are needed, 1 or more.

        Returns:
            int32 row numbers, pages complete, owned by the caller. Less than one run above what was
            asked for.

        Raises:
            OutOfRows: If fewer rows are free; nothing is taken then.

        Changes:
            The rows returned are no longer free, and their owner is `UNNAMED`.

        Cost:
            O(rows + frames with free rows), in numpy.
        """
        pages = -(-num_rows // self.page_size)
        if pages > self._frames.num_free_pages:
            raise OutOfRows(needed=num_rows, free=self.num_free, evictable=0)
        rows = self.rows_of(self._frames.take(pages))
        self._owners[rows] = UNNAMED
        return rows

    def free(self, rows: RowArray) -> None:
        """Give rows back.

        Args:
            rows: Row numbers, whole pages in any order; may be empty.

        Raises:
            InvariantError: If a row is free already or lies in a slot, is given twice, or a page is
                not whole; nothing changes then.

        Changes:
            The rows are free; frames without a row in use can be handed out as slots.
        """
        if not len(rows):
            return
        pages = rows[:: self.page_size] // self.page_size
        if len(rows) % self.page_size or (
            self.page_size > 1 and not np.array_equal(self.rows_of(pages), rows)
        ):
            raise InvariantError("rows given back are not whole pages", ledger={"rows": len(rows)})
        is_sound = True
        if not (pages[1:] > pages[:-1]).all():
            pages.sort()
            is_sound = bool((pages[1:] != pages[:-1]).all())
        num_pages = (self._frames.num_frames + 1) * self._frames.pages_per_frame
        is_sound = is_sound and pages[0] >= 0 and pages[-1] < num_pages
        if not is_sound or not self._frames.give(pages):
            raise InvariantError(
                "a row is given back that is not in use",
                ledger={"rows": len(rows), "free": self.num_free},
            )

    def free_mask(self) -> npt.NDArray[np.bool_]:
        """Return which rows are free, `[rows of the sink + capacity]`, those of slots taken."""
        return np.repeat(self._frames.free_pages(), self.page_size)

    def rows_of(self, pages: PageArray) -> RowArray:
        """Return the rows of pages, in their order."""
        if self.page_size == 1:
            return pages
        offsets = np.arange(self.page_size, dtype=np.int32)
        return (pages[:, None] * np.int32(self.page_size) + offsets).ravel()


class ArenaSlots:
    """The state slots of an arena, with the verbs of a `SlotAllocator`.

    Args:
        frames: The arena's frames; slot `s` is frame `s` as a whole.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self.capacity = frames.num_frames

    @property
    def num_free(self) -> int:
        """Slots that could be taken now: frames that are wholly free."""
        return self._frames.num_free_frames

    def allocate(self) -> int:
        """Take one slot; the caller owns it. Its content is undefined.

        Raises:
            OutOfSlots: If no frame is wholly free.
        """
        if not self.num_free:
            raise OutOfSlots(needed=1, free=0, evictable=0)
        return self._frames.take_frame()

    def free(self, slot: int) -> None:
        """Give a slot back.

        Raises:
            InvariantError: If it is not in use.
        """
        if not self._frames.is_whole(slot):
            raise InvariantError(
                f"state slot {slot} is given back but not in use", ledger={"free": self.num_free}
            )
        self._frames.give_frame(slot)

    def free_mask(self) -> npt.NDArray[np.bool_]:
        """Return which slots are free, `[1 + capacity]`, the padding sink taken."""
        return self._frames.free_frames()
