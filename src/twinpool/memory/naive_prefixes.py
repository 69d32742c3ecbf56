"""Prefixes as the naive twin has them: a namespace and a tuple of token ids.

Knows nothing else.
"""

from __future__ import annotations

# Namespace and token ids, whole pages; the empty tuple is the root.
Prefix = tuple[str, tuple[int, ...]]


def depth_of(prefix: Prefix) -> int:
    """Return the tokens of a prefix."""
    return len(prefix[1])


def cut_at(prefix: Prefix, depth: int) -> Prefix:
    """Return the first tokens of a prefix."""
    return (prefix[0], prefix[1][:depth])


def pages_of(end: Prefix, page_size: int) -> list[Prefix]:
    """Return all prefixes of whole pages, shortest first, the empty one left out."""
    return [cut_at(end, depth) for depth in range(page_size, depth_of(end) + 1, page_size)]


def starts_with(prefix: Prefix, start: Prefix) -> bool:
    """True when `start` is a prefix of the other, or the same."""
    return prefix[0] == start[0] and prefix[1][: depth_of(start)] == start[1]
