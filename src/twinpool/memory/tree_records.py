"""What the radix tree answers: a match, and what an insert or a removal gives back.

Plain records; they know nodes and change none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.memory.allocator import RowArray
from twinpool.memory.node import NO_ROWS, Node


@dataclass(frozen=True, slots=True)
class Match:
    """How far a prompt is known.

    Attributes:
        node: Where reuse ends: the node of the deepest usable checkpoint, or the root. For models
            without linear layers the end may lie inside the node's segment.
        depth: Tokens that can be reused.
        kv_depth: Tokens whose KV is there, at least `depth`; what lies between was lost to a
            missing state.
    """

    node: Node
    depth: int
    kv_depth: int

    @property
    def num_unlocked_rows(self) -> int:
        """Rows of the reusable prefix that no lock protects yet."""
        return sum(
            max(0, min(node.depth, self.depth) - node.depth + len(node.rows))
            for node in self.node.path()
            if not node.row_locks
        )


def nothing_matched() -> Match:
    """Return the match of a prompt that shares nothing; its node stands in no tree."""
    return Match(Node(-1, b"", NO_ROWS, None), 0, 0)


@dataclass(slots=True)
class Inserted:
    """What an insert did, and what it gives back.

    Attributes:
        node: The node at the end of the inserted prefix.
        duplicate_start: Where the tree had rows of its own for tokens that the caller brought rows
            for: `[duplicate_start, duplicate_end)`; the caller keeps owning its rows there.
        duplicate_end: End of that span.
        grown: The node that the new segment hangs on; `node` when there is no new one.
        placed: Nodes that took a checkpoint, by rising depth.
        found: Nodes that had one already.
        surplus_slots: The slots brought for them; the caller keeps owning them.
    """

    node: Node
    duplicate_start: int
    duplicate_end: int
    grown: Node
    placed: list[Node] = field(default_factory=list)
    found: list[Node] = field(default_factory=list)
    surplus_slots: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Removed:
    """Rows and slots that left the tree; the receiver owns them."""

    rows: list[RowArray] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    num_rows: int = 0
    nodes: list[Node] = field(default_factory=list)
