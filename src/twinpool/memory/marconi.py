"""Marconi: eviction by recency and by the arithmetic that a cached prefix saves per byte.

The score of an entry is its recency plus `alpha` times its FLOP efficiency, each scaled to the
spread that all entries have; the smallest goes first. Knows the tree's nodes and plain numbers of
the model; no pool, request or time.

Source: Marconi: prefix caching for the era of hybrid LLMs (MLSys 2025), sections 4.2 and 4.3.
Ours differs in two points that keep the choice of a victim logarithmic: recency is the counter of
the last use itself, not the inverse of the age, so that the order of two entries does not change
while both rest; and the spreads are measured anew only after as many evictions as there are
entries. An entry's saving counts from the checkpoint above it, as an evicted one leaves its KV to
the entry below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twinpool.errors import ConfigError
from twinpool.memory.node import Node
from twinpool.memory.work import NEUTRAL, PrefillWork

DEFAULT_ALPHA = 1.0


class Marconi:
    """Recency plus `alpha` times FLOP efficiency; forks go last.

    Args:
        work: What prefixes of the model cost.
        alpha: Weight of the efficiency, 0 (recency alone) or more.

    Raises:
        ConfigError: If alpha is negative.
    """

    name = "marconi"
    keeps_dead = False
    frees_leaf = True
    is_scaled = True
    heeds_path = True

    def __init__(self, work: PrefillWork = NEUTRAL, alpha: float = DEFAULT_ALPHA) -> None:
        if not alpha >= 0:
            raise ConfigError(f"--marconi-alpha is {alpha:g}", hint="use 0 or more")
        self._work = work
        self._alpha = alpha
        # Ticks of recency that one operation per byte is worth.
        self._ticks_per_efficiency = 0.0

    def pass_tick(self, now: int) -> None:
        """Recency needs no clock of its own."""

    def row_key(self, node: Node) -> tuple[float, ...]:
        """Return the score of a leaf as a unit."""
        return self.slot_key(node)

    def slot_key(self, node: Node) -> tuple[float, ...]:
        """Return the score of an entry; a fork is worth more than any that is none."""
        score = _used(node) + self._ticks_per_efficiency * self.efficiency(node)
        return (float(node.is_fork), score, -node.depth, node.number)

    def efficiency(self, node: Node) -> float:
        """Return the operations that an entry saves per byte that its eviction would free."""
        start = _start(node)
        num_bytes = self._work.slot_bytes if node.has_checkpoint else 0
        if not node.children and not node.row_locks:
            num_bytes += self._work.row_bytes * (node.depth - start)
        return self._work.saved(start, node.depth) / max(num_bytes, 1)

    def measure(self, nodes: Sequence[Node]) -> None:
        """Scale both terms to the spread that they have over all entries.

        Args:
            nodes: All that could be evicted now.

        Changes:
            Every key.
        """
        # What was placed to go first is not old, and would stretch the scale beyond use.
        used = [_used(node) for node in nodes if _used(node) > 0]
        gains = [self.efficiency(node) for node in nodes]
        ticks = max(used) - min(used) if used else 0
        spread = max(gains) - min(gains) if gains else 0.0
        # Where all are as recent as each other, efficiency alone decides.
        self._ticks_per_efficiency = self._alpha * max(ticks, 1) / spread if spread else 0.0


def _used(node: Node) -> int:
    """Return when an entry was last used; KV that needs no checkpoint goes by its own use."""
    return node.slot_used if node.has_checkpoint else node.row_used


def _start(node: Node) -> int:
    """Return the depth of the checkpoint above a node, 0 without one."""
    above = node.parent
    while above is not None and above.parent is not None and not above.has_checkpoint:
        above = above.parent
    return above.depth if above is not None else 0


def heirs(node: Node) -> Iterator[Node]:
    """Yield the entries below a node whose saving counts from it while it holds a checkpoint.

    Args:
        node: Where a checkpoint came or went.
    """
    stack = list(node.children.values())
    while stack:
        below = stack.pop()
        if below.has_checkpoint or not below.children:
            yield below
        else:
            stack.extend(below.children.values())
