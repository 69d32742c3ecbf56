"""Prefix numbering: a number for each pair of (the block before, the block's content).

Numbers count up in the order of first appearance, so that equal numbers mean equal prefixes and
nothing of the content shows. Knows no file, no session and no time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Content = npt.NDArray[Any]
Runs = list[tuple[int, int]]


class _Node:
    """Blocks that follow each other without a fork, numbered `first`, `first + 1`, ..."""

    __slots__ = ("children", "content", "depth", "first")

    def __init__(self, content: Content, first: int, depth: int) -> None:
        self.content = content
        self.first = first
        self.depth = depth
        self.children: dict[bytes, _Node] = {}


class PrefixNumbering:
    """Numbers the blocks of one namespace.

    A radix tree over block contents, compared vectorised: a prompt of thousands of known blocks
    costs one comparison per fork on its path.
    """

    def __init__(self) -> None:
        # No number comes next after the root's.
        self._root = _Node(np.empty(0, dtype=np.int32), -1, 0)
        self._next = 0

    @property
    def num_blocks(self) -> int:
        """Different prefixes so far: the next number."""
        return self._next

    def add(self, content: Content) -> tuple[Runs, int]:
        """Number the blocks of a prompt; new ones get the next numbers.

        Args:
            content: `[blocks]` of block ids, or `[blocks, block_tokens]` of tokens; the same shape
                and dtype in every call. Kept, in part: the caller must not write to it any more.

        Returns:
            The numbers as runs `(first, length)`, and how many blocks from the start were known.
        """
        runs: Runs = []
        node, depth, count = self._root, 0, len(content)
        while depth < count:
            child = node.children.get(content[depth].tobytes())
            if child is None:
                break
            shared = _shared(child.content, content[depth:])
            _extend(runs, child.first, shared)
            depth += shared
            node = child
            if shared < len(child.content):
                if depth < count:
                    _split(child, shared)
                break
        known = depth
        if depth < count:
            _extend(runs, self._next, count - depth)
            self._append(node, content, depth)
        return runs, known

    def find(self, content: Content) -> Runs:
        """Return the numbers of the blocks from the start that are known; changes nothing.

        Args:
            content: As for `add`; not kept.
        """
        runs: Runs = []
        node, depth = self._root, 0
        while depth < len(content):
            child = node.children.get(content[depth].tobytes())
            if child is None:
                break
            shared = _shared(child.content, content[depth:])
            _extend(runs, child.first, shared)
            depth += shared
            if shared < len(child.content):
                break
            node = child
        return runs

    def _append(self, node: _Node, content: Content, depth: int) -> None:
        first, self._next = self._next, self._next + len(content) - depth
        # Only the node that was numbered last ends there, and then nothing hangs on it.
        if node.first + len(node.content) == first:
            node.content = _own(content, node.depth)
        else:
            node.children[content[depth].tobytes()] = _Node(_own(content, depth), first, depth)


def spell_out(runs: Runs) -> npt.NDArray[np.int32]:
    """Return the numbers of some runs, int32."""
    parts = [np.arange(first, first + length, dtype=np.int32) for first, length in runs]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def _own(content: Content, depth: int) -> Content:
    part = content[depth:]
    # A view keeps all of its array alive: not worth it for a small end of a long prompt.
    return part if 2 * len(part) >= len(content) else part.copy()


def _extend(runs: Runs, first: int, length: int) -> None:
    if runs and sum(runs[-1]) == first:
        runs[-1] = (runs[-1][0], runs[-1][1] + length)
    else:
        runs.append((first, length))


def _split(node: _Node, at: int) -> None:
    """Cut a node in two; the upper part stays in place."""
    lower = _Node(node.content[at:], node.first + at, node.depth + at)
    lower.children = node.children
    node.content = node.content[:at]
    node.children = {lower.content[0].tobytes(): lower}


def _shared(left: Content, right: Content) -> int:
    count = min(len(left), len(right))
    differs = left[:count] != right[:count]
    if differs.ndim > 1:
        differs = differs.any(axis=tuple(range(1, differs.ndim)))
    first = int(differs.argmax()) if count else 0
    return first if count and differs[first] else count
