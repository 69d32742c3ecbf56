"""Forecast: what would be lost if so much memory were taken now.

Goes through the victims in their order without evicting one. Knows the queues, the tree and a
budget; changes none of them.
"""

from __future__ import annotations

from twinpool.memory.evictor import Evictor
from twinpool.memory.node import Node
from twinpool.memory.supply import Shortage
from twinpool.memory.value import Value


def expected_loss(
    evictor: Evictor, policy: Value, shortage: Shortage, *, spared: Node, limit: float
) -> float:
    """Return the operations that are likely to be computed again if rows and slots are taken.

    Args:
        evictor: Knows the victims, and what is free.
        policy: Says how likely they are to be wanted.
        shortage: What is missing.
        spared: A node that will be locked before, so that it is no victim.
        limit: Beyond this much the exact loss does not matter, and the rest is not looked at.

    Returns:
        0 where all of it is free.
    """
    gone: set[int] = set()
    inherited: dict[int, float] = {}
    victims: list[Node] = []
    lost = 0.0
    while not shortage.is_over and lost <= limit:
        node = _pop(evictor, shortage)
        if node is None:
            break
        victims.append(node)
        if node is spared or node.number in gone:
            continue
        gone.add(node.number)
        above = _standing_above(node, gone)
        start = above.depth if above is not None else 0
        chance = max(policy.chance(node), inherited.get(node.number, 0.0))
        if above is not None and node.has_checkpoint:
            # Whoever would have come back to the one comes back to the other.
            inherited[above.number] = max(inherited.get(above.number, 0.0), chance)
        lost += chance * policy.work.saved(start, node.depth)
        shortage.give(_freed_rows(node, gone, start), int(node.has_checkpoint))
    for node in victims:
        evictor.push(node)
    return lost


def _pop(evictor: Evictor, shortage: Shortage) -> Node | None:
    """Take the next victim out of its queue."""
    if shortage.is_shared:
        return evictor.pop_first()
    return evictor.row_victims.pop() if shortage.rows > 0 else evictor.slot_victims.pop()


def _standing_above(node: Node, gone: set[int]) -> Node | None:
    """Return the nearest checkpoint above that is still there."""
    above = node.parent
    while above is not None and (not above.has_checkpoint or above.number in gone):
        above = above.parent
    return above


def _freed_rows(node: Node, gone: set[int], start: int) -> int:
    """Return the rows that are dead once a unit is gone: up to where something else needs them."""
    step: Node | None = node
    end = node.depth
    while step is not None and step.parent is not None and end > start:
        is_held = any(child.number not in gone for child in step.children.values())
        if is_held or step.row_locks or (step.has_checkpoint and step.number not in gone):
            break
        gone.add(step.number)
        end = step.depth - len(step.rows)
        step = step.parent
    return node.depth - end
