"""Locks: what running requests protect from eviction, counted at the nodes and in all.

KV is locked by paths, a checkpoint by itself. Knows nodes; no pool and no request.
"""

from __future__ import annotations

from twinpool.errors import InvariantError
from twinpool.memory.node import Node


class Locks:
    """Locks of one tree.

    Attributes:
        num_rows: Rows under a lock.
        num_checkpoints: Checkpoints under a lock.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_checkpoints = 0

    def lock_rows(self, node: Node) -> None:
        """Protect the KV of a path from eviction, once more."""
        for step in node.path():
            if step.row_locks == 0:
                self.num_rows += len(step.rows)
            step.row_locks += 1

    def unlock_rows(self, node: Node) -> None:
        """Take one lock of a path away.

        Raises:
            InvariantError: If the path is not locked.
        """
        for step in node.path():
            if step.row_locks <= 0:
                raise InvariantError("a path is unlocked that is not locked")
            step.row_locks -= 1
            if step.row_locks == 0:
                self.num_rows -= len(step.rows)

    def lock_checkpoint(self, node: Node) -> None:
        """Protect a node's checkpoint until it has been copied."""
        if node.slot_locks == 0:
            self.num_checkpoints += node.has_checkpoint
        node.slot_locks += 1

    def unlock_checkpoint(self, node: Node) -> None:
        """Take one lock of a checkpoint away.

        Raises:
            InvariantError: If it is not locked.
        """
        if node.slot_locks <= 0:
            raise InvariantError("a checkpoint is unlocked that is not locked")
        node.slot_locks -= 1
        if node.slot_locks == 0:
            self.num_checkpoints -= node.has_checkpoint
