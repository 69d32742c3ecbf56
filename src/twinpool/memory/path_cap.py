"""The per-path cap: which checkpoints of a path are too many.

Knows one path of the tree and the cap; the caller removes what is named here.

Source: reference engine, `--mamba-max-states-per-path`; the same rule.
"""

from __future__ import annotations

from twinpool.memory.node import Node


def over_cap(tail: Node, max_states: int) -> list[Node]:
    """Name the checkpoints to drop so that a path keeps at most `max_states`.

    Args:
        tail: The deepest node of the path, where the insert ended.
        max_states: Checkpoints that may stay, 1 or more.

    Returns:
        Nodes to strip of their checkpoint, shallowest first: interior ones without a fork and
        without a lock. The tail, forks, leaves and locked ones stay, so fewer than asked for may be
        named.
    """
    holders = [node for node in tail.path() if node.has_checkpoint][::-1]
    surplus = len(holders) - max_states
    if surplus <= 0:
        return []
    droppable = [
        node
        for node in holders
        if node is not tail and node.slot_locks == 0 and len(node.children) == 1
    ]
    return droppable[:surplus]
