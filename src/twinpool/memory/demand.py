"""Demand: what waiting requests would reuse counts as certain to be wanted.

Knows nodes and the evictor, which has to hear of what is worth more now; no request and no queue.
"""

from __future__ import annotations

from twinpool.memory.evictor import Evictor
from twinpool.memory.node import Node


class Demand:
    """Counts who waits for what.

    Args:
        evictor: Follows what units are worth.
        is_reusing: False where nothing is ever reused.

    Attributes:
        version: Rises with every change of what waiting requests want.
    """

    def __init__(self, evictor: Evictor, *, is_reusing: bool) -> None:
        self._evictor = evictor
        self._is_reusing = is_reusing
        self.version = 0

    @property
    def is_heeded(self) -> bool:
        """True where what waiting requests want has a say in what is evicted."""
        return self._evictor.learning is not None and self._is_reusing

    def want(self, node: Node) -> None:
        """Hear that a waiting request would reuse what ends at a node, until `unwant`.

        Changes:
            What the node is worth.
        """
        node.num_wanting += 1
        self.version += 1
        self._evictor.push(node)

    def unwant(self, node: Node) -> None:
        """Take back one `want`; the node may have been evicted since.

        Changes:
            What the node is worth.
        """
        node.num_wanting -= 1
        self.version += 1
        if node.parent is not None:
            self._evictor.push(node)
