"""The naive twin's order of eviction: for every victim, the keys of all that could go.

Knows the books; changes nothing.
"""

from __future__ import annotations

from fractions import Fraction

from twinpool.memory.naive_books import NaiveBooks
from twinpool.memory.naive_prefixes import Prefix, depth_of, starts_with

COLDEST = -(10**15)


class NaiveOrder:
    """Which leaf and which checkpoint go first.

    Args:
        books: What there is.
        policy: One of the policies by recency, or `marconi`.
        work: For `marconi`: operations per row and per pair of rows, bytes of a row and a slot.
        alpha: For `marconi`: weight of the efficiency.
    """

    def __init__(
        self, books: NaiveBooks, policy: str, work: tuple[int, int, int, int], alpha: Fraction
    ) -> None:
        self._books = books
        self._policy = policy
        self._work = work
        self._alpha = alpha

    def first_leaf(self) -> Prefix:
        """Return the leaf that goes first; there must be one."""
        # Of equals the deepest goes: what is shared by more stays.
        return min(self._books.leaves(), key=lambda p: (self._leaf_key(p), -depth_of(p)))

    def first_checkpoint(self) -> Prefix:
        """Return the checkpoint that goes first; there must be one."""
        return min(self._books.holders(), key=lambda p: (self._checkpoint_key(p), -depth_of(p)))

    def first_of_all(self) -> tuple[Prefix, bool]:
        """Return the first of all leaves and checkpoints, and whether it goes as a leaf.

        Of equals the checkpoint goes.
        """
        books = self._books
        units = [(self._leaf_key(p), -depth_of(p), True, p) for p in books.leaves()]
        units += [(self._checkpoint_key(p), -depth_of(p), False, p) for p in books.holders()]
        _, _, is_leaf, prefix = min(units, key=lambda unit: unit[:3])
        return prefix, is_leaf

    def _leaf_key(self, prefix: Prefix) -> tuple[Fraction | int, ...]:
        books = self._books
        if self._policy == "marconi":
            return self._score(prefix)
        if self._policy != "joint-lru":
            return (books.kv[prefix],)
        return (max(books.kv[prefix], books.checkpoints.get(prefix, COLDEST)),)

    def _checkpoint_key(self, prefix: Prefix) -> tuple[Fraction | int, ...]:
        if self._policy == "marconi":
            return self._score(prefix)
        if self._policy == "joint-lru" and self._books.is_leaf(prefix):
            return self._leaf_key(prefix)
        return (self._books.checkpoints[prefix],)

    def _score(self, prefix: Prefix) -> tuple[Fraction | int, ...]:
        """Return recency plus alpha times efficiency, both between 0 and 1 over all entries."""
        entries = set(self._books.leaves()) | set(self._books.holders())
        used = [self._used(entry) for entry in entries if self._used(entry) > 0] or [0]
        gains = [self._efficiency(entry) for entry in entries]
        recency = Fraction(self._used(prefix) - min(used), max(max(used) - min(used), 1))
        spread = max(gains) - min(gains)
        gain = (self._efficiency(prefix) - min(gains)) / spread if spread else Fraction(0)
        return self._books.num_branches(prefix) > 1, recency + self._alpha * gain

    def _used(self, prefix: Prefix) -> int:
        return self._books.checkpoints.get(prefix, self._books.kv[prefix])

    def _efficiency(self, prefix: Prefix) -> Fraction:
        """Return the operations saved over the checkpoint above, per byte that would be freed."""
        per_row, per_pair, row_bytes, slot_bytes = self._work
        places = self._books.checkpoints
        above = [p for p in places if p != prefix and starts_with(prefix, p)]
        start, end = max(map(depth_of, above), default=0), depth_of(prefix)
        saved = sum(per_row + per_pair * depth for depth in range(start + 1, end + 1))
        freed = slot_bytes * (prefix in places)
        if self._books.is_leaf(prefix):
            freed += row_bytes * (end - start)
        return Fraction(saved, max(freed, 1))
