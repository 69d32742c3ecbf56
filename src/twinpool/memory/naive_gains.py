"""What the naive twin's units save and free: from the nearest checkpoint above, page by page.

Knows the books; changes nothing.
"""

from __future__ import annotations

from twinpool.memory.naive_books import NaiveBooks
from twinpool.memory.naive_prefixes import Prefix, depth_of

# Operations per row, operations per pair of rows, bytes of a row, bytes of a slot.
Work = tuple[int, int, int, int]


def saved_operations(work: Work, start: int, end: int) -> int:
    """Return what a prefix saves over a shorter one: each row sees all rows up to itself."""
    per_row, per_pair, _, _ = work
    return sum(per_row + per_pair * depth for depth in range(start + 1, end + 1))


def gain_of(books: NaiveBooks, work: Work, prefix: Prefix) -> tuple[int, int]:
    """Return the operations that a unit saves, and the bytes that are counted as freed by it."""
    _, _, row_bytes, slot_bytes = work
    above = books.holder_above(prefix)
    start, end = depth_of(above) if above is not None else 0, depth_of(prefix)
    freed = slot_bytes * (prefix in books.checkpoints)
    if books.is_leaf(prefix):
        freed += row_bytes * (end - start)
    return saved_operations(work, start, end), max(freed, 1)
