"""A node of the radix tree: one segment of a prefix, the rows of its KV, and its checkpoint.

Knows its parent and its children; no pool, and nothing of what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from twinpool.memory.allocator import RowArray

TokenArray = npt.NDArray[np.int32]

NO_SLOT = -1
# Added to the recency of checkpoints that go before all others, in the order of their placing.
COLDEST = -(10**15)
NO_ROWS: RowArray = np.empty(0, dtype=np.int32)


class Node:
    """One segment of a prefix; its checkpoint, if it has one, stands at its end.

    Attributes:
        number: Order of creation; breaks ties.
        ids: Token ids of the segment, int32, as bytes: equal bytes are compared fastest.
        rows: KV rows of the segment, owned by the node.
        depth: Tokens from the root to the end of the segment.
        parent: None for a root and for a node that has been removed.
        root: Of its namespace; itself for a root.
        children: By the first page of their segments.
        checkpoint: State slot owned by the node, or `NO_SLOT`.
        row_locks: Running requests whose path goes through the node.
        slot_locks: Requests that have matched the checkpoint and not yet copied it.
        row_used: Recency of the KV: the tree's counter when the path was last walked by a request.
        slot_used: Recency of the checkpoint: the counter when it was placed or last matched, with
            `COLDEST` added where it is to go first.
        kind: Why the checkpoint was left, a `PlaceKind`.
        hits: Requests that have gone on from here since it was left.
        generation: Turns of its session that were cached before it, as far as they count.
        num_wanting: Waiting requests whose reuse ends here, as far as somebody keeps count.
    """

    __slots__ = (
        "checkpoint",
        "children",
        "depth",
        "generation",
        "hits",
        "ids",
        "kind",
        "num_wanting",
        "number",
        "parent",
        "root",
        "row_locks",
        "row_used",
        "rows",
        "slot_locks",
        "slot_used",
    )

    def __init__(self, number: int, ids: bytes, rows: RowArray, parent: Node | None) -> None:
        self.number = number
        self.ids = ids
        self.rows = rows
        self.parent = parent
        self.root: Node = self if parent is None else parent.root
        self.depth: int = len(rows) + (parent.depth if parent else 0)
        self.children: dict[bytes, Node] = {}
        self.checkpoint = NO_SLOT
        self.row_locks = 0
        self.slot_locks = 0
        self.row_used = 0
        self.slot_used = 0
        self.kind = 0
        self.hits = 0
        self.generation = 0
        self.num_wanting = 0

    @property
    def tokens(self) -> TokenArray:
        """Token ids of the segment, int32, read only."""
        return np.frombuffer(self.ids, dtype=np.int32)

    @property
    def is_leaf(self) -> bool:
        """True when no segment continues this one."""
        return not self.children

    @property
    def is_fork(self) -> bool:
        """True when two or more segments continue this one."""
        return len(self.children) > 1

    @property
    def has_checkpoint(self) -> bool:
        """True when the state after the last token is kept."""
        return self.checkpoint != NO_SLOT

    def path(self) -> Iterator[Node]:
        """Yield this node and its ancestors below the root, deepest first."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def path_rows(self) -> RowArray:
        """Return the rows of the whole prefix, int32 `[depth]`; the tree keeps owning them."""
        segments = [node.rows for node in self.path()]
        return np.concatenate(segments[::-1]) if segments else NO_ROWS
