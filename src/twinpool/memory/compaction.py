"""Compaction: moves cold rows together so that a frame becomes free for a state.

Only rows of the tree that no running request reads are moved, one frame at a time and only when a
slot is wanted: what is copied is never more than the state that takes its place. Knows the arena
and the tree; no request, and copies no byte.
"""

from __future__ import annotations

import numpy as np

from twinpool.memory.arena import Arena, Moves
from twinpool.memory.tree import Node, RadixTree

# Nodes that come to own rows between two sweeps of those that are gone, at least.
MIN_SWEEP = 64


class Compaction:
    """Keeps the map from rows to nodes, and moves rows by it.

    Args:
        arena: Where rows are.
        tree: Whose rows are moved.

    Attributes:
        moved_rows: Rows moved since start.
    """

    def __init__(self, arena: Arena, tree: RadixTree) -> None:
        self._arena = arena
        self._nodes: dict[int, Node] = {}
        self._moves: list[Moves] = []
        self._until_sweep = MIN_SWEEP
        self.moved_rows = 0
        tree.note_rows = self._note_rows

    def empty_frame(self) -> bool:
        """Free one frame by moving cold rows into free rows elsewhere; False when none can be.

        Changes:
            The rows of nodes, and the moves to be drained.
        """
        per_slot = self._arena.rows_per_slot
        if self._arena.rows.num_free < per_slot:
            return False
        moves = self._arena.compact(self._is_cold, per_slot)
        if moves is None:
            return False
        sources, targets = moves.sources, moves.targets
        for number in np.unique(moves.owners).tolist():
            node = self._nodes[number]
            at = np.minimum(np.searchsorted(sources, node.rows), len(sources) - 1)
            node.rows = np.where(sources[at] == node.rows, targets[at], node.rows)
        self._moves.append(moves)
        self.moved_rows += len(sources)
        return True

    def drain(self) -> list[Moves]:
        """Return the moves since the last call, in order, and forget them."""
        drained, self._moves = self._moves, []
        return drained

    def _is_cold(self, number: int) -> bool:
        node = self._nodes.get(number)
        return node is not None and node.parent is not None and node.row_locks == 0

    def _note_rows(self, node: Node) -> None:
        self._nodes[node.number] = node
        self._arena.own(node.rows, node.number)
        self._until_sweep -= 1
        if self._until_sweep < 0:
            # Those that have left the tree are forgotten, seldom enough.
            self._nodes = {n: kept for n, kept in self._nodes.items() if kept.parent is not None}
            self._until_sweep = len(self._nodes) + MIN_SWEEP
