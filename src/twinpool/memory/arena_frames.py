"""Frames: equal pieces of one memory, each free, taken whole, or broken into pages.

Knows pages and counts; not what a page or a whole frame holds, who owns it, nor what a row is. Page
`p` lies in frame `p // pages_per_frame`; frame 0 is the padding sink.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PageArray = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

# Kinds of a frame; the sink counts as taken whole.
_FREE, _WHOLE, _BROKEN = 0, 1, 2


class Frames:
    """Which frames are free, and which pages of the broken ones are.

    Pages are handed out in runs while broken frames have whole runs, then one by one from broken
    frames, and only then from a free frame. A frame whose pages are all back is free at once.

        frame:  | sink | whole (a slot) | broken: run run run | free |
        run:                              | 16 pages, of each whether it is free |

    Args:
        num_frames: Frames that can be handed out, 0 or more.
        pages_per_frame: Pages of a frame, 1 or more; its last run may be short.
        pages_per_run: Pages of a run, 1 to 16.
    """

    def __init__(self, num_frames: int, pages_per_frame: int, pages_per_run: int) -> None:
        self.num_frames = num_frames
        self.pages_per_frame = pages_per_frame
        self._run = pages_per_run
        self._places = np.arange(pages_per_run, dtype=np.int32)
        num_runs = -(-pages_per_frame // pages_per_run)
        self._sizes = np.full(num_runs, pages_per_run, dtype=np.int32)
        self._sizes[-1] = pages_per_frame - (num_runs - 1) * pages_per_run
        # What a short run lacks at the end of a frame is never free.
        self._padding = num_runs * pages_per_run - pages_per_frame
        self._is_free = np.zeros((num_frames + 1, num_runs * pages_per_run), dtype=np.bool_)
        self._is_free[:, :pages_per_frame] = True
        # The same by page and padding.
        self._flat = self._is_free.reshape(-1)
        self._kinds = np.full(num_frames + 1, _FREE, dtype=np.int8)
        self._num_free = np.full(num_frames + 1, pages_per_frame, dtype=np.int32)
        self._num_runs = np.full(num_frames + 1, num_runs, dtype=np.int32)
        self._fill(0, is_free=False)
        # Broken frames with a free page.
        self._is_open = np.zeros(num_frames + 1, dtype=np.bool_)
        self._num_open_pages = 0
        # A stack, top at the end; frame 1 comes first.
        self._free: list[int] = list(range(num_frames, 0, -1))

    @property
    def num_free_frames(self) -> int:
        """Frames that are wholly free."""
        return len(self._free)

    @property
    def num_free_pages(self) -> int:
        """Pages that could be taken: those of broken frames and all of free ones."""
        return self._num_open_pages + len(self._free) * self.pages_per_frame

    def take_frame(self) -> int:
        """Take a free frame as a whole; there must be one."""
        frame = self._free.pop()
        self._fill(frame, is_free=False)
        return frame

    def give_frame(self, frame: int) -> None:
        """Give a frame back that was taken as a whole."""
        self._fill(frame, is_free=True)
        self._free.append(frame)

    def is_whole(self, frame: int) -> bool:
        """True for a frame that is taken as a whole."""
        return 0 < frame <= self.num_frames and bool(self._kinds[frame] == _WHOLE)

    def take(self, num_pages: int) -> PageArray:
        """Take at least so many pages, which must be there; whole runs while there are any.

        Returns:
            Page numbers, less than one run above what was asked for.

        Cost:
            O(pages + broken frames), in numpy.
        """
        if num_pages <= self._run and len(run := self._take_one_run(num_pages)):
            return run
        parts: list[PageArray] = []
        left = num_pages
        if self._num_open_pages:
            parts.append(self._take_open(left, round_up=True))
            left -= len(parts[0])
        if left > 0:
            parts.append(self._take_runs(self._break(-(-left // self.pages_per_frame)), left, True))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def give(self, pages: PageArray) -> bool:
        """Give pages of broken frames back.

        Args:
            pages: Rising page numbers, which must exist.

        Returns:
            False if one is free already or in no broken frame; nothing changes then.

        Changes:
            The pages are free; so are frames without a page in use, as a whole.
        """
        frames = pages // self.pages_per_frame
        at = frames * self._padding + pages
        if self._flat[at].any() or (self._kinds[frames] != _BROKEN).any():
            return False
        self._flat[at] = True
        freed = self._count(frames)
        self._kinds[freed] = _FREE
        self._num_open_pages -= len(freed) * self.pages_per_frame
        # The lowest on top, so that frames taken together tend to follow each other.
        self._free += freed[::-1].tolist()
        return True

    def move(self, frame: int) -> tuple[PageArray, PageArray]:
        """Empty a broken frame into others that are broken already, and free it.

        Args:
            frame: A frame of `emptiest`.

        Returns:
            Its pages that were in use, rising, and the page that each one becomes.
        """
        sources = self.used(frame)
        # Out of sight while the new pages are chosen.
        self._num_open_pages -= int(self._num_free[frame])
        self._is_open[frame] = False
        targets = self._take_open(len(sources), round_up=False)
        self._num_open_pages += int(self._num_free[frame])
        is_given = self.give(sources)
        assert is_given, "pages in use were free"
        return sources, targets

    def emptiest(self, max_pages: int, limit: int) -> list[int]:
        """Return broken frames that fit into others, those with the fewest pages in use first.

        Args:
            max_pages: Pages in use that a frame may have.
            limit: Frames to return at most.

        Cost:
            O(frames), in numpy.
        """
        frames = (self._kinds == _BROKEN).nonzero()[0]
        free = self._num_free[frames]
        used = self.pages_per_frame - free
        fits = (used <= max_pages) & (used <= self._num_open_pages - free)
        frames, used = frames[fits], used[fits]
        order: list[int] = frames[used.argsort(kind="stable")[:limit]].tolist()
        return order

    def used(self, frame: int) -> PageArray:
        """Return the pages in use of a broken frame, rising; none of a frame of another kind."""
        if self._kinds[frame] != _BROKEN:
            return np.empty(0, dtype=np.int32)
        is_free = self._is_free[frame, : self.pages_per_frame]
        return ((~is_free).nonzero()[0] + frame * self.pages_per_frame).astype(np.int32)

    def are_used(self, pages: PageArray) -> bool:
        """True if all pages, which must exist, lie in broken frames and are in use."""
        frames = pages // self.pages_per_frame
        is_used = ~self._flat[frames * self._padding + pages]
        return bool((is_used & (self._kinds[frames] == _BROKEN)).all())

    def free_frames(self) -> BoolArray:
        """Return which frames are wholly free, `[1 + num_frames]`."""
        return np.equal(self._kinds, _FREE, dtype=np.bool_)

    def free_pages(self) -> BoolArray:
        """Return which pages are free, `[(1 + num_frames) * pages_per_frame]`."""
        return self._is_free[:, : self.pages_per_frame].flatten()

    def _fill(self, frame: int, *, is_free: bool) -> None:
        """Make a frame wholly free or wholly taken."""
        self._kinds[frame] = _FREE if is_free else _WHOLE
        self._is_free[frame, : self.pages_per_frame] = is_free
        self._num_free[frame] = self.pages_per_frame if is_free else 0
        self._num_runs[frame] = len(self._sizes) if is_free else 0

    def _break(self, count: int) -> IntArray:
        """Break free frames; their pages are all free still."""
        frames = np.array(self._free[: -count - 1 : -1], dtype=np.int32)
        del self._free[-count:]
        self._kinds[frames] = _BROKEN
        self._num_open_pages += count * self.pages_per_frame
        return frames

    def _take_one_run(self, num_pages: int) -> PageArray:
        """Take one run as `_take_runs` would, in less time; none where that is not enough."""
        frames = self._is_open.nonzero()[0]
        frames = frames[self._num_runs[frames] > 0]
        if not len(frames):
            return np.empty(0, dtype=np.int32)
        frame = int(frames[self._num_free[frames].argmin()])
        run = int(self._are_whole(self._is_free[frame : frame + 1]).argmax())
        size = int(self._sizes[run])
        if size < num_pages:
            return np.empty(0, dtype=np.int32)
        self._is_free[frame, run * self._run : run * self._run + size] = False
        self._num_runs[frame] -= 1
        self._num_free[frame] -= size
        self._num_open_pages -= size
        self._is_open[frame] = self._num_free[frame] > 0
        first = frame * self.pages_per_frame + run * self._run
        return np.arange(first, first + size, dtype=np.int32)

    def _take_open(self, num_pages: int, *, round_up: bool) -> PageArray:
        """Take pages of broken frames, fewer if there are not as many: runs, then single ones."""
        frames = self._is_open.nonzero()[0].astype(np.int32)
        frames = frames[self._num_free[frames].argsort(kind="stable")]
        has_runs = self._num_runs[frames] > 0
        taken = self._take_runs(frames[has_runs], num_pages, round_up)
        num_pages -= len(taken)
        if num_pages <= 0 or not self._num_open_pages:
            return taken
        single = self._take_single(frames, num_pages)
        return np.concatenate([taken, single]) if len(taken) else single

    def _take_runs(self, frames: IntArray, num_pages: int, round_up: bool) -> PageArray:
        """Take whole runs of frames that have some; `round_up`: one more for what is left over."""
        # Only the last run of a frame can be short, so this is the least that each one gives.
        least = self._num_runs[frames] * self._run - (self._run - self._sizes[-1])
        frames = frames[: least.cumsum().searchsorted(num_pages) + 1]
        index, runs = self._are_whole(self._is_free[frames]).nonzero()
        ends = self._sizes[runs].cumsum()
        count = ends.searchsorted(num_pages) + 1 if round_up else ends.searchsorted(num_pages + 1)
        runs = runs[:count].astype(np.int32)
        frames = frames[index[:count]]
        if not len(frames):
            return frames
        at = frames * np.int32(len(self._sizes)) + runs
        self._flat.reshape(-1, self._run)[at] = False
        self._count(frames)
        first = frames * np.int32(self.pages_per_frame) + runs * np.int32(self._run)
        pages: PageArray = first[:, None] + self._places
        sizes = self._sizes[runs]
        return pages.ravel() if sizes.min() == self._run else pages[self._places < sizes[:, None]]

    def _take_single(self, frames: IntArray, num_pages: int) -> PageArray:
        """Take pages one by one, in the order of the frames, fewer if there are not as many."""
        frames = frames[: self._num_free[frames].cumsum().searchsorted(num_pages) + 1]
        index, places = self._is_free[frames].nonzero()
        frames, places = frames[index[:num_pages]], places[:num_pages]
        self._is_free[frames, places] = False
        self._count(frames)
        pages: PageArray = frames * np.int32(self.pages_per_frame) + places.astype(np.int32)
        return pages

    def _are_whole(self, is_free: BoolArray) -> BoolArray:
        """Return which runs of some frames are wholly free, `[frames, runs]`."""
        by_run = is_free.reshape(len(is_free), len(self._sizes), self._run)
        whole: BoolArray = np.add.reduce(by_run, 2, dtype=np.int32) == self._sizes
        return whole

    def _count(self, frames: IntArray) -> IntArray:
        """Count what is free of frames anew, those of one side by side, and open or close them.

        Returns the frames that have no page in use any more.
        """
        touched = frames[:1]
        if frames[0] != frames[-1]:
            touched = frames[np.concatenate([[True], frames[1:] != frames[:-1]])]
        is_free = self._is_free[touched]
        free = np.add.reduce(is_free, 1, dtype=np.int32)
        self._num_open_pages += int((free - self._num_free[touched]).sum())
        self._num_free[touched] = free
        self._num_runs[touched] = np.add.reduce(self._are_whole(is_free), 1, dtype=np.int32)
        self._is_open[touched] = (free > 0) & (free < self.pages_per_frame)
        freed: IntArray = touched[free == self.pages_per_frame]
        return freed
