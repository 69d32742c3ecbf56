"""Compaction: moves rows together so that a frame becomes free for a state.

Free rows that lie apart are then as good as a free frame: whatever holds rows can be moved, the
tree's and those of running requests, one frame at a time and only when a slot is wanted. What is
copied is never more than the state that takes its place. Knows the arena, the tree and who else
holds rows; decides nothing about requests, and copies no byte.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from twinpool.memory.allocator import RowArray
from twinpool.memory.arena import Arena, Moves
from twinpool.memory.node import Node
from twinpool.memory.tree import RadixTree

# Nodes that come to own rows between two sweeps of those that are gone, at least.
MIN_SWEEP = 64
# Owners of rows are nodes by their numbers, and below `arena.UNNAMED` holders by theirs.
_FIRST_HOLDER = -2


class RowHolder(Protocol):
    """Somebody who runs: holds the rows of a path of the tree, and behind them its own.

    Attributes:
        number: Its own, 0 or more; not another's while it may be listed.
        tree_depth: How many of its rows are the tree's.
    """

    number: int
    tree_depth: int

    @property
    def rows(self) -> RowArray:
        """All rows held, int32, a view that can be written."""
        ...


class Compaction:
    """Keeps the map from rows to those who list them, and moves rows by it.

    Args:
        arena: Where rows are.
        tree: Whose nodes list rows; holders come and go.

    Attributes:
        moved_rows: Rows moved since start.
    """

    def __init__(self, arena: Arena, tree: RadixTree) -> None:
        self._arena = arena
        self._nodes: dict[int, Node] = {}
        self._holders: dict[int, RowHolder] = {}
        self._moves: list[Moves] = []
        self._until_sweep = MIN_SWEEP
        self.moved_rows = 0
        tree.note_rows = self._note_rows

    def enter(self, holder: RowHolder) -> None:
        """Hear of somebody who lists rows of the tree, and will have its own; until `leave`."""
        self._holders[holder.number] = holder

    def leave(self, holder: RowHolder) -> None:
        """Forget a holder; its own rows go to the tree or are freed before anything moves."""
        self._holders.pop(holder.number, None)

    def own(self, holder: RowHolder, rows: RowArray) -> None:
        """Record that rows are a holder's own."""
        self._arena.own(rows, _FIRST_HOLDER - holder.number)

    def is_held(self, number: int, rows: RowArray) -> bool:
        """True if a holder of that number has entered, and all of the rows are known as its own."""
        is_own = self._arena.owners_of(rows) == _FIRST_HOLDER - number
        return number in self._holders and bool(is_own.all())

    def empty_frame(self) -> bool:
        """Free one frame by moving its rows into free rows elsewhere; False when none can be.

        Where nothing is in transit it can be as soon as a frame's worth of rows is free.

        Changes:
            The rows of nodes and of holders, in place, and the moves to be drained.
        """
        per_slot = self._arena.rows_per_slot
        if self._arena.rows.num_free < per_slot:
            return False
        moves = self._arena.compact(self._is_movable, per_slot)
        if moves is None:
            return False
        first = int(moves.sources[0]) // per_slot * per_slot
        became = np.zeros(per_slot, dtype=np.int32)
        became[moves.sources - first] = moves.targets
        for owner in np.unique(moves.owners).tolist():
            if owner <= _FIRST_HOLDER:
                holder = self._holders[_FIRST_HOLDER - owner]
                _move(holder.rows[holder.tree_depth :], first, became)
            else:
                self._move_node(self._nodes[owner], first, became)
        self._moves.append(moves)
        self.moved_rows += len(moves.sources)
        return True

    def drain(self) -> list[Moves]:
        """Return the moves since the last call, in order, and forget them."""
        drained, self._moves = self._moves, []
        return drained

    def _move_node(self, node: Node, first: int, became: RowArray) -> None:
        assert node.parent is not None
        last = int(node.rows[-1])
        at = _move(node.rows, first, became)
        if not node.row_locks:
            return
        for holder in self._holders.values():
            # A row has one place in the tree, so whoever lists it there lists all of the segment.
            if holder.tree_depth >= node.depth and holder.rows[node.depth - 1] == last:
                holder.rows[node.parent.depth + at] = node.rows[at]

    def _is_movable(self, owner: int) -> bool:
        if owner <= _FIRST_HOLDER:
            return _FIRST_HOLDER - owner in self._holders
        node = self._nodes.get(owner)
        return node is not None and node.parent is not None

    def _note_rows(self, node: Node) -> None:
        self._nodes[node.number] = node
        self._arena.own(node.rows, node.number)
        self._until_sweep -= 1
        if self._until_sweep < 0:
            # Those that have left the tree are forgotten, seldom enough.
            self._nodes = {n: kept for n, kept in self._nodes.items() if kept.parent is not None}
            self._until_sweep = len(self._nodes) + MIN_SWEEP


def _move(rows: RowArray, first: int, became: RowArray) -> npt.NDArray[np.intp]:
    """Rewrite those of `rows` that lie in the frame at `first`; returns where they stand."""
    at = np.flatnonzero((rows >= first) & (rows < first + len(became)))
    rows[at] = became[rows[at] - first]
    return at
