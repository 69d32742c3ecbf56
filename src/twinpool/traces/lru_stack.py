"""Stack distances of block accesses: LRU hits at every capacity in one pass.

Knows no tokens and no trace format; a block is a namespace and its prefix number.

Blocks that were last accessed one after the other, in one request, and are accessed one after the
other again have one distance: what lies above the first of them leaves as it comes back, and takes
its place above the second. So a prompt costs a few runs and not thousands of blocks.

Source: Mattson et al., "Evaluation techniques for storage hierarchies" (1970); the runs are ours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt


class LruStack:
    """All blocks ever accessed, the latest on top.

    Args:
        num_requests: How many requests will be accessed at most.
    """

    def __init__(self, num_requests: int) -> None:
        # A stamp per block access; the blocks of one request are stamped one after the other.
        self._clock = 0
        self._starts: list[int] = []
        # Per request, how many of its stamps are still the last access of their block.
        self._counts = _Counts(num_requests)
        self._last: dict[str, npt.NDArray[np.int64]] = {}

    def access(
        self, namespace: str, runs: Sequence[tuple[int, int]], known: int
    ) -> list[tuple[int, int]]:
        """Access the blocks of one request in order.

        Args:
            namespace: Where the numbers belong.
            runs: The blocks as runs `(first number, length)`: a path of the prefix tree, so that
                whoever accessed a block had accessed all blocks before it.
            known: How many blocks from the start were accessed before.

        Returns:
            Runs `(length, distance)` of the known blocks: how many other blocks were accessed since
            the block was. A cache of `distance + 1` blocks has it.

        Changes:
            The blocks are on top of the stack, the last one uppermost.

        Cost:
            O(log requests) per run.
        """
        last = self._stamps(namespace, max((sum(run) for run in runs), default=0))
        distances: list[tuple[int, int]] = []
        done = 0
        for first, length in runs:
            before, warm = done, max(0, min(length, known - done))
            stamps = last[first : first + warm]
            while done < before + warm:
                rest = stamps[done - before :]
                size = _run_length(rest)
                distances.append((size, done + self._take(int(rest[0]), size)))
                done += size
            done = before + length
            last[first : first + length] = np.arange(self._clock + before, self._clock + done)
        if done:
            self._counts.add(len(self._starts), done)
            self._starts.append(self._clock)
            self._clock += done
        return distances

    def _stamps(self, namespace: str, count: int) -> npt.NDArray[np.int64]:
        last = self._last.get(namespace)
        if last is None or len(last) < count:
            size = max(count, 0 if last is None else 2 * len(last))
            grown = np.empty(size, dtype=np.int64)
            if last is not None:
                grown[: len(last)] = last
            self._last[namespace] = last = grown
        return last

    def _take(self, stamp: int, size: int) -> int:
        """Take live stamps out of the stack and return how many lay above the first of them.

        Of a request's stamps, those that later requests took are the first ones: its path and
        theirs part once. So all beyond one that is live are live.
        """
        slot = bisect_right(self._starts, stamp) - 1
        end = self._starts[slot + 1] if slot + 1 < len(self._starts) else self._clock
        above = end - stamp - 1 + self._counts.after(slot)
        self._counts.add(slot, -size)
        return above


class LruCurve:
    """Hits of an LRU cache of blocks, by its capacity.

    Args:
        gains: `(capacity, blocks, tokens)`: from a capacity of that many blocks on, those blocks,
            which hold those tokens, are hits.
        block_tokens: Tokens of a block.
    """

    def __init__(self, gains: Iterable[tuple[int, int, int]], block_tokens: int) -> None:
        summed: dict[int, tuple[int, int]] = {}
        for capacity, blocks, tokens in gains:
            more_blocks, more_tokens = summed.get(capacity, (0, 0))
            summed[capacity] = (more_blocks + blocks, more_tokens + tokens)
        self._block_tokens = block_tokens
        self._capacities = sorted(summed)
        self._blocks = list(accumulate(summed[capacity][0] for capacity in self._capacities))
        self._tokens = list(accumulate(summed[capacity][1] for capacity in self._capacities))

    @property
    def enough_tokens(self) -> int:
        """The smallest capacity, in tokens, beyond which no hit is added."""
        return self._capacities[-1] * self._block_tokens if self._capacities else 0

    def hit_tokens(self, capacity_tokens: int) -> int:
        """Return the tokens that a cache hits.

        Args:
            capacity_tokens: Its capacity; what is no whole block holds nothing.
        """
        return self._at(self._tokens, capacity_tokens)

    def hit_blocks(self, capacity_tokens: int) -> int:
        """Return the blocks that a cache hits, a partial last one as one.

        Args:
            capacity_tokens: Its capacity; what is no whole block holds nothing.
        """
        return self._at(self._blocks, capacity_tokens)

    def _at(self, sums: list[int], capacity_tokens: int) -> int:
        index = bisect_right(self._capacities, capacity_tokens // self._block_tokens)
        return sums[index - 1] if index else 0


class _Counts:
    """Counts by slot with sums of all later ones: a Fenwick tree."""

    def __init__(self, size: int) -> None:
        self._tree = [0] * (size + 1)
        self._total = 0

    def add(self, slot: int, count: int) -> None:
        self._total += count
        index = slot + 1
        while index < len(self._tree):
            self._tree[index] += count
            index += index & -index

    def after(self, slot: int) -> int:
        """Sum of the counts of slots beyond one."""
        index, before = slot + 1, 0
        while index:
            before += self._tree[index]
            index -= index & -index
        return self._total - before


def _run_length(stamps: npt.NDArray[np.int64]) -> int:
    """Count the blocks from the first on that one request accessed last.

    Deeper blocks were never accessed later than those before them: stamps count up by one within a
    request and fall from one to the next.
    """
    first, count = int(stamps[0]), len(stamps)
    if int(stamps[-1]) - first == count - 1:
        return count
    return bisect_left(range(count), True, key=lambda index: int(stamps[index]) - first != index)
