"""The naive twin's evictions: what goes first, until there is enough.

Knows the books and the order, and tells a policy by value of what goes.
"""

from __future__ import annotations

from twinpool.memory.naive_books import NaiveBooks
from twinpool.memory.naive_order import NaiveOrder
from twinpool.memory.naive_prefixes import Prefix
from twinpool.memory.naive_value import NaiveValue


class NaiveEvictor:
    """Takes units out, one at a time.

    Args:
        books: What there is.
        order: What goes first.
        value: What learns from evictions; None where nothing does.
        frees_leaf: True when the checkpoint at the end of a leaf takes the leaf's KV along.
    """

    def __init__(
        self, books: NaiveBooks, order: NaiveOrder, value: NaiveValue | None, *, frees_leaf: bool
    ) -> None:
        self._books = books
        self._order = order
        self._value = value
        self._frees_leaf = frees_leaf

    def evict_for_rows(self) -> None:
        """Evict one unit for rows; there must be one."""
        if self._books.budget is None:
            self._evict_leaf(self._order.first_leaf(), "rows")
        else:
            self._evict_any("rows")

    def evict_for_slot(self) -> None:
        """Evict one unit for a slot; there must be one."""
        if self._books.budget is None:
            self._evict_checkpoint(self._order.first_checkpoint(), "slots")
        else:
            self._evict_any("slots")

    def flush(self) -> None:
        """Drop all that could go; nothing is learned from it."""
        while self._books.leaves():
            self._books.drop_leaf(self._order.first_leaf(), "flush")
        while self._books.holders():
            self._books.drop_checkpoint(self._order.first_checkpoint(), "flush")

    def _evict_any(self, reason: str) -> None:
        prefix, is_leaf = self._order.first_of_all()
        if is_leaf:
            self._evict_leaf(prefix, reason)
        else:
            self._evict_checkpoint(prefix, reason)

    def _evict_leaf(self, prefix: Prefix, reason: str) -> None:
        if self._value is not None:
            self._value.note_eviction(prefix)
        self._books.drop_leaf(prefix, reason)

    def _evict_checkpoint(self, prefix: Prefix, reason: str) -> None:
        if self._frees_leaf and self._books.is_leaf(prefix):
            self._evict_leaf(prefix, reason)
            return
        if self._value is not None:
            self._value.note_eviction(prefix)
        self._books.drop_checkpoint(prefix, reason)
