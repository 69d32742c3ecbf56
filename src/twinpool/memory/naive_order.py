"""The naive twin's order of eviction: for every victim, the keys of all that could go.

Knows the books; changes nothing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

from twinpool.memory.naive_books import NaiveBooks
from twinpool.memory.naive_gains import Work, gain_of
from twinpool.memory.naive_prefixes import Prefix, depth_of

COLDEST = -(10**15)
Key = tuple[Fraction | int, ...]


class NaiveScore(Protocol):
    """What a unit is worth, by more than its use."""

    def key(self, prefix: Prefix) -> Key:
        """Return the key of a leaf or checkpoint; the smallest goes first."""
        ...


class NaiveOrder:
    """Which leaf and which checkpoint go first.

    Args:
        books: What there is.
        policy: Its name.
        score: What units are worth; None where use alone counts.
    """

    def __init__(self, books: NaiveBooks, policy: str, score: NaiveScore | None) -> None:
        self._books = books
        self._policy = policy
        self._score = score

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

    def _leaf_key(self, prefix: Prefix) -> Key:
        if self._score is not None:
            return self._score.key(prefix)
        used = self._books.kv[prefix]
        if self._policy == "joint-lru":
            used = max(used, self._books.checkpoints.get(prefix, COLDEST))
        return (used,)

    def _checkpoint_key(self, prefix: Prefix) -> Key:
        if self._score is not None:
            return self._score.key(prefix)
        if self._policy == "joint-lru" and self._books.is_leaf(prefix):
            return self._leaf_key(prefix)
        return (self._books.checkpoints[prefix],)


class NaiveMarconi:
    """Recency plus alpha times efficiency, both between 0 and 1 over all that could go.

    Args:
        books: What there is.
        work: What prefixes cost.
        alpha: Weight of the efficiency.
    """

    def __init__(self, books: NaiveBooks, work: Work, alpha: Fraction) -> None:
        self._books = books
        self._work = work
        self._alpha = alpha

    def key(self, prefix: Prefix) -> Key:
        """Return the score; forks go last."""
        books = self._books
        entries = set(books.leaves()) | set(books.holders())
        used = [books.used(entry) for entry in entries if books.used(entry) > 0] or [0]
        gains = [self._efficiency(entry) for entry in entries]
        recency = Fraction(books.used(prefix) - min(used), max(max(used) - min(used), 1))
        spread = max(gains) - min(gains)
        gain = (self._efficiency(prefix) - min(gains)) / spread if spread else Fraction(0)
        return books.num_branches(prefix) > 1, recency + self._alpha * gain

    def _efficiency(self, prefix: Prefix) -> Fraction:
        return Fraction(*gain_of(self._books, self._work, prefix))
