"""Allocators of both index spaces: rows in runs of whole pages, and state slots one by one.

They know which units are free and nothing else: not who owns the others, not what eviction could
free. Unit numbers start behind the padding sink: rows at `page_size`, slots at 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots

RowArray = npt.NDArray[np.int32]
PageArray = npt.NDArray[np.int32]

# Rows of a run, where a row is a token.
RUN_ROWS = 16


class RowAllocator:
    """Hands out KV rows, in aligned runs while there are any.

    Attention reads runs of consecutive rows fastest, so a request is given whole runs and keeps
    what it does not fill until it ends. Only when no whole run is left are single pages taken from
    broken ones.

        run:   | 16 rows | 16 rows | 16 rows |      whole runs wait on one stack,
        state: |  whole  | broken  |  taken  |      broken ones with a free page on another

    Args:
        capacity: Rows in the pool, a multiple of `page_size`; 0 or more.
        page_size: Rows of a page; rows of one page are always given together.
        run_rows: Rows of a run, `RUN_ROWS` or fewer; a page where that is more.

    Raises:
        ConfigError: If the numbers do not fit each other.
    """

    def __init__(self, capacity: int, *, page_size: int = 1, run_rows: int = RUN_ROWS) -> None:
        if page_size < 1 or capacity < 0 or capacity % page_size:
            raise ConfigError(
                f"{capacity} rows are not whole pages of {page_size}",
                hint="make the number of rows a multiple of a positive page size",
            )
        self.capacity = capacity
        self.page_size = page_size
        self._pages_per_run = max(1, run_rows // page_size)
        num_pages = capacity // page_size
        num_runs = -(-num_pages // self._pages_per_run)
        self._num_pages = num_pages
        self._places = np.arange(self._pages_per_run, dtype=np.int32)
        # One mask per run: a bit for each of its pages that is free.
        self._whole_mask = (1 << self._pages_per_run) - 1
        self._masks = np.full(num_runs, self._whole_mask, dtype=np.uint16)
        if num_pages % self._pages_per_run:
            # The last run is short: it can never be whole, only broken.
            self._masks[-1] = (1 << num_pages % self._pages_per_run) - 1
        whole = int(num_pages // self._pages_per_run)
        # Stacks, top at the end; run 0 comes first.
        self._whole: list[int] = list(range(whole - 1, -1, -1))
        self._broken: list[int] = [] if whole == num_runs else [num_runs - 1]
        self._in_broken = np.zeros(num_runs, dtype=np.bool_)
        self._in_broken[self._broken] = True
        self.num_free = capacity

    def allocate(self, num_rows: int) -> RowArray:
        """Take at least `num_rows` rows, rounded up to whole runs where whole runs are left.

        Args:
            num_rows: Rows that are needed, 1 or more.

        Returns:
            int32 row numbers, pages complete, owned by the caller. No more than one run above
            what was asked for.

        Raises:
            OutOfRows: If fewer rows are free; nothing is taken then.

        Changes:
            The rows returned are no longer free.

        Cost:
            O(rows), in numpy.
        """
        pages = -(-num_rows // self.page_size)
        if pages * self.page_size > self.num_free:
            raise OutOfRows(needed=num_rows, free=self.num_free, evictable=0)
        num_runs = min(-(-pages // self._pages_per_run), len(self._whole))
        parts = []
        if num_runs:
            parts.append(self._take_whole(num_runs))
            pages -= num_runs * self._pages_per_run
        if pages > 0:
            parts.append(self._take_from_broken(pages))
        taken = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.num_free -= len(taken) * self.page_size
        return self._rows_of(taken)

    def free(self, rows: RowArray) -> None:
        """Give rows back.

        Args:
            rows: Row numbers, whole pages in any order; may be empty.

        Raises:
            InvariantError: If a row is free already, is given twice, or a page is not whole;
                nothing changes then.

        Changes:
            The rows are free; runs that became whole can be handed out as such.
        """
        if not len(rows):
            return
        pages = rows[:: self.page_size] // self.page_size - 1
        self._check_whole_pages(rows, pages)
        if not (pages[1:] > pages[:-1]).all():
            pages.sort()
        self._check_inside(pages)
        runs = pages // self._pages_per_run
        bits = np.left_shift(1, pages - runs * self._pages_per_run, dtype=np.int32)
        first = np.concatenate([[0], (runs[1:] != runs[:-1]).nonzero()[0] + 1])
        touched = runs[first]
        given = np.bitwise_or.reduceat(bits, first)
        if (self._masks[touched] & given).any():
            raise self._not_in_use(pages)
        masks = self._masks[touched] | given
        self._masks[touched] = masks
        self.num_free += len(rows)
        is_whole = masks == self._whole_mask
        # The lowest on top, so that runs taken together tend to follow each other.
        self._whole += touched[is_whole][::-1].tolist()
        broken = touched[~is_whole & ~self._in_broken[touched]]
        self._in_broken[broken] = True
        self._broken += broken[::-1].tolist()

    def free_mask(self) -> npt.NDArray[np.bool_]:
        """Return which rows are free, `[page_size + capacity]`, the padding sink taken."""
        sink = np.zeros(self.page_size, dtype=np.bool_)
        is_free = self._bits_of(self._masks).ravel()[: self._num_pages]
        return np.concatenate([sink, np.repeat(is_free, self.page_size)])

    def _bits_of(self, masks: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """Return which pages of each run are free, `[runs, pages per run]`."""
        return (masks[:, None] >> self._places & 1).astype(np.bool_)

    def _take_whole(self, num_runs: int) -> PageArray:
        taken = np.array(self._whole[: -num_runs - 1 : -1], dtype=np.int32)
        del self._whole[-num_runs:]
        self._masks[taken] = 0
        return (taken[:, None] * self._pages_per_run + self._places).ravel()

    def _take_from_broken(self, num_pages: int) -> PageArray:
        parts: list[PageArray] = []
        while num_pages > 0:
            # Every broken run gives at least one page.
            popped = np.array(self._broken[: -num_pages - 1 : -1], dtype=np.int32)
            del self._broken[-num_pages:]
            self._in_broken[popped] = False
            # A run that has become whole since waits on the other stack, or was taken from it.
            masks = self._masks[popped]
            runs = popped[(masks > 0) & (masks < self._whole_mask)]
            pages = runs[:, None] * self._pages_per_run + self._places
            pages = pages[self._bits_of(self._masks[runs])]
            taken, left = pages[:num_pages], pages[num_pages:]
            parts.append(taken)
            num_pages -= len(taken)
            self._masks[runs] = 0
            left_runs = left // self._pages_per_run
            bits = np.left_shift(1, left - left_runs * self._pages_per_run)
            np.bitwise_or.at(self._masks, left_runs, bits.astype(np.uint16))
            still = runs[self._masks[runs] > 0]
            self._in_broken[still] = True
            self._broken += still[::-1].tolist()
        return np.concatenate(parts)

    def _rows_of(self, pages: PageArray) -> RowArray:
        if self.page_size == 1:
            return pages + np.int32(1)
        first = (pages + np.int32(1)) * np.int32(self.page_size)
        offsets = np.arange(self.page_size, dtype=np.int32)
        return (first[:, None] + offsets).ravel().astype(np.int32, copy=False)

    def _check_whole_pages(self, rows: RowArray, pages: PageArray) -> None:
        is_whole = len(rows) % self.page_size == 0 and (
            self.page_size == 1 or np.array_equal(self._rows_of(pages), rows)
        )
        if not is_whole:
            raise InvariantError("rows given back are not whole pages", ledger={"rows": len(rows)})

    def _check_inside(self, pages: PageArray) -> None:
        """Check that sorted pages are in the pool and none is there twice."""
        is_inside = pages[0] >= 0 and pages[-1] < self._num_pages
        if not is_inside or (pages[1:] == pages[:-1]).any():
            raise self._not_in_use(pages)

    def _not_in_use(self, pages: PageArray) -> InvariantError:
        return InvariantError(
            "a row is given back that is not in use",
            ledger={"rows": len(pages) * self.page_size, "free": self.num_free},
        )


class SlotAllocator:
    """Hands out state slots 1..capacity; slot 0 is the padding sink.

    Args:
        capacity: Slots in the pool, 0 or more.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ConfigError(f"{capacity} state slots", hint="use 0 or more")
        self.capacity = capacity
        self._free = list(range(capacity, 0, -1))
        self._is_free = np.ones(capacity + 1, dtype=np.bool_)
        self._is_free[0] = False

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def allocate(self) -> int:
        """Take one slot; the caller owns it. Its content is undefined.

        Raises:
            OutOfSlots: If none is free.
        """
        if not self._free:
            raise OutOfSlots(needed=1, free=0, evictable=0)
        slot = self._free.pop()
        self._is_free[slot] = False
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back.

        Raises:
            InvariantError: If it is not in use.
        """
        if not 0 < slot <= self.capacity or self._is_free[slot]:
            raise InvariantError(
                f"state slot {slot} is given back but not in use", ledger={"free": self.num_free}
            )
        self._is_free[slot] = True
        self._free.append(slot)

    def free_mask(self) -> npt.NDArray[np.bool_]:
        """Return which slots are free, `[1 + capacity]`, the padding sink taken."""
        return self._is_free.copy()
