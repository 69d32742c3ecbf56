r"""The radix tree: token prefixes, the rows that hold their KV, and the checkpoints on them.

A pure structure. It knows no pool: whatever an operation removes or does not need is returned to
the caller, who owns it from then on. It never decides what to evict.

    root --[a b c]-- n1* --[d e]-- n2 --[f]-- n3*        * a checkpoint: the state after the
                              \----[g]-- n4*               node's last token
Match of `a b c d e x`: KV to depth 5 (n2), usable to depth 3 (n1): n2 is a tombstone for state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from twinpool.errors import InvariantError

TokenArray = npt.NDArray[np.int32]
RowArray = npt.NDArray[np.int32]

NO_SLOT = -1
_NOTHING: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
_TOKEN_BYTES = 4
# Up to here comparing bytes is faster, copy included; beyond it numpy is, which copies nothing.
_SHORT_BYTES = 4096


class Node:
    """One segment of a prefix; its checkpoint, if it has one, stands at its end.

    Attributes:
        number: Order of creation; breaks ties.
        ids: Token ids of the segment, int32, as bytes: equal bytes are compared fastest.
        rows: KV rows of the segment, owned by the node.
        depth: Tokens from the root to the end of the segment.
        parent: None for a root and for a node that has been removed.
        children: By the first page of their segments.
        checkpoint: State slot owned by the node, or `NO_SLOT`.
        row_locks: Running requests whose path goes through the node.
        slot_locks: Requests that have matched the checkpoint and not yet copied it.
        row_used: Recency of the KV: the tree's counter when the path was last walked by a request.
        slot_used: Recency of the checkpoint: the counter when it was placed or last matched.
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
        return np.concatenate(segments[::-1]) if segments else _NOTHING


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
    return Match(Node(-1, b"", _NOTHING, None), 0, 0)


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


class RadixTree:
    """Prefixes of all namespaces.

    Args:
        page_size: Depths of nodes are multiples of it.
        needs_state: True when a prefix is usable only at a checkpoint; False for models without
            linear layers, where any KV prefix is.
    """

    def __init__(self, *, page_size: int = 1, needs_state: bool = True) -> None:
        self.page_size = page_size
        self.needs_state = needs_state
        self._page_bytes = page_size * _TOKEN_BYTES
        self.roots: dict[str, Node] = {}
        self._root_names: dict[int, str] = {}
        self._count = 0
        # Told of every node that has come to own rows, where somebody keeps a map of owners.
        self.note_rows: Callable[[Node], None] | None = None
        self.num_rows = 0
        self.num_locked_rows = 0
        self.num_checkpoints = 0
        self.num_locked_checkpoints = 0

    def root(self, namespace: str) -> Node:
        """Return the root of a namespace, made on first use."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = self._new(b"", _NOTHING, None)
            self._root_names[root.number] = namespace
        return root

    def namespace_of(self, node: Node) -> str:
        """Return the namespace that a node of the tree belongs to."""
        while node.parent is not None:
            node = node.parent
        return self._root_names[node.number]

    def match(self, namespace: str, tokens: TokenArray) -> Match:
        """Walk as deep as KV goes and find the deepest usable prefix. Changes nothing.

        Args:
            namespace: Whose prefixes count.
            tokens: int32 ids of the whole prompt; at most `len(tokens) - 1` of them are matched,
                since the last one must be computed to give logits.

        Returns:
            The match; its node is the namespace's root (or a free-standing one for an unknown
            namespace) when nothing can be reused.

        Cost:
            One comparison of bytes per node on the path.
        """
        root = self.roots.get(namespace)
        if root is None:
            return nothing_matched()
        limit = (len(tokens) - 1) // self.page_size * self._page_bytes
        ids = _bytes_of(tokens)
        page = self._page_bytes
        node, best, at = root, root, 0
        while at < limit:
            child = node.children.get(ids[at : at + page].tobytes())
            if child is None:
                break
            shared = self._shared(child.ids, ids, at, limit)
            at += shared
            if shared < len(child.ids):
                if not self.needs_state:
                    return Match(child, at // _TOKEN_BYTES, at // _TOKEN_BYTES)
                break
            node = child
            if node.checkpoint != NO_SLOT or not self.needs_state:
                best = node
        return Match(best, best.depth, at // _TOKEN_BYTES)

    def insert(
        self,
        start: Node,
        tokens: TokenArray,
        rows: RowArray,
        checkpoints: list[tuple[int, int]],
    ) -> Inserted:
        """Put a prefix into the tree, with its rows and checkpoints.

        Args:
            start: A node of the tree on the prefix's path (a root, or where the caller's lock
                stands); the walk begins there.
            tokens: int32 ids from depth 0 to the end of the prefix, whole pages; copied.
            rows: int32 rows of the same span; read from `start.depth` on, copied.
            checkpoints: `(depth, slot)` by rising depth, each on a page, none deeper than the
                prefix.

        Returns:
            What was given back; see `Inserted`.

        Changes:
            The tree owns the rows of the span outside the duplicates, and the slots that were
            placed.
        """
        end = len(tokens)
        # Ids behind the start alone: what is before it is known to be on its path.
        ids = _bytes_of(tokens[start.depth :])
        node, length = self._walk(start, ids)
        depth = start.depth + length // _TOKEN_BYTES
        result = Inserted(node, start.depth, depth, node)
        if depth < end:
            leaf = self._new(ids[length:].tobytes(), rows[depth:end].copy(), node)
            node.children[leaf.ids[: self._page_bytes]] = leaf
            self.num_rows += end - depth
            result.node = leaf
            if self.note_rows is not None:
                self.note_rows(leaf)
        # From the deepest up, so that the ancestors found by the walk stay valid.
        at = result.node
        for place, slot in reversed(checkpoints):
            at = self._node_at(at, place)
            if at.checkpoint != NO_SLOT:
                result.found.append(at)
                result.surplus_slots.append(slot)
            else:
                at.checkpoint = slot
                self.num_checkpoints += 1
                self.num_locked_checkpoints += at.slot_locks > 0
                result.placed.append(at)
        result.placed.reverse()
        return result

    def split_at(self, node: Node, depth: int) -> Node:
        """Return the node that ends at `depth` on the path to `node`, split if there is none."""
        return self._node_at(node, depth)

    def lock_rows(self, node: Node) -> None:
        """Protect the KV of a path from eviction, once more."""
        for step in node.path():
            if step.row_locks == 0:
                self.num_locked_rows += len(step.rows)
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
                self.num_locked_rows -= len(step.rows)

    def lock_checkpoint(self, node: Node) -> None:
        """Protect a node's checkpoint until it has been copied."""
        if node.slot_locks == 0:
            self.num_locked_checkpoints += node.has_checkpoint
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
            self.num_locked_checkpoints -= node.has_checkpoint

    def remove_checkpoint(self, node: Node) -> int:
        """Take a checkpoint out and return its slot, which the caller then owns.

        Raises:
            InvariantError: If there is none or it is locked.
        """
        if not node.has_checkpoint or node.slot_locks:
            raise InvariantError("a checkpoint is removed that is missing or locked")
        slot = node.checkpoint
        node.checkpoint = NO_SLOT
        self.num_checkpoints -= 1
        return slot

    def remove_leaf(self, node: Node, removed: Removed) -> Node:
        """Take a leaf out, with its checkpoint if it has one.

        Args:
            node: A leaf without locks.
            removed: Receives its rows and slot.

        Returns:
            Its former parent.

        Raises:
            InvariantError: If it is no leaf, a root, or locked.
        """
        parent = node.parent
        if parent is None or node.children or node.row_locks:
            raise InvariantError("a node is removed that is locked or not a leaf")
        if node.has_checkpoint:
            removed.slots.append(self.remove_checkpoint(node))
        removed.rows.append(node.rows)
        removed.num_rows += len(node.rows)
        removed.nodes.append(node)
        self.num_rows -= len(node.rows)
        del parent.children[node.ids[: self._page_bytes]]
        node.parent = None
        if parent.parent is None and not parent.children:
            # A namespace that holds nothing is forgotten, so that salts do not pile up.
            del self.roots[self._root_names.pop(parent.number)]
        return parent

    def prune_dead(self, node: Node, removed: Removed) -> Node:
        """Remove `node` and its ancestors as long as they are dead: KV that nothing can use.

        Args:
            node: Where to begin.
            removed: Receives rows.

        Returns:
            The first node that stays.
        """
        while (
            self.needs_state
            and node.parent is not None
            and not node.children
            and not node.has_checkpoint
            and node.row_locks == 0
        ):
            node = self.remove_leaf(node, removed)
        return node

    def nodes(self) -> Iterator[Node]:
        """Yield every node below the roots, parents before children, in a fixed order."""
        stack = [child for root in self.roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _walk(self, node: Node, ids: memoryview) -> tuple[Node, int]:
        """Follow ids from a node and split where they leave the tree; returns bytes followed."""
        at = 0
        while at < len(ids):
            child = node.children.get(ids[at : at + self._page_bytes].tobytes())
            if child is None:
                break
            shared = self._shared(child.ids, ids, at, len(ids))
            at += shared
            if shared < len(child.ids):
                return self._split(child, shared // _TOKEN_BYTES), at
            node = child
        return node, at

    def _node_at(self, node: Node, depth: int) -> Node:
        if not 0 < depth <= node.depth:
            raise InvariantError(
                "a place lies outside its path", ledger={"depth": depth, "end": node.depth}
            )
        while node.parent is not None and node.parent.depth >= depth:
            node = node.parent
        if node.depth == depth:
            return node
        assert node.parent is not None
        return self._split(node, depth - node.parent.depth)

    def _split(self, node: Node, length: int) -> Node:
        """Cut a segment in two; `node` keeps the lower part, its checkpoint and its identity."""
        parent = node.parent
        assert parent is not None
        cut = length * _TOKEN_BYTES
        # Copies, not views: a short part must not keep the memory of a long one.
        upper = self._new(node.ids[:cut], node.rows[:length].copy(), parent)
        parent.children[upper.ids[: self._page_bytes]] = upper
        node.ids = node.ids[cut:]
        node.rows = node.rows[length:].copy()
        node.parent = upper
        upper.children[node.ids[: self._page_bytes]] = node
        # Every lock on the lower part goes through the upper one too.
        upper.row_locks = node.row_locks
        upper.row_used = node.row_used
        if self.note_rows is not None:
            self.note_rows(upper)
        return upper

    def _new(self, ids: bytes, rows: RowArray, parent: Node | None) -> Node:
        self._count += 1
        return Node(self._count, ids, rows, parent)

    def _shared(self, segment: bytes, ids: memoryview, at: int, end: int) -> int:
        """Count the bytes that a segment shares with `ids[at:end]`, in whole pages."""
        length = len(segment)
        is_short = length <= _SHORT_BYTES and at + length <= end
        if is_short and ids[at : at + length].tobytes() == segment:
            return length
        count = min(length, end - at) // _TOKEN_BYTES
        ours = np.frombuffer(segment, dtype=np.int32, count=count)
        same = ours == np.frombuffer(ids, dtype=np.int32, count=count, offset=at)
        if not same.all():
            count = int(same.argmin())
        return count // self.page_size * self._page_bytes


def _bytes_of(tokens: TokenArray) -> memoryview:
    whole = np.ascontiguousarray(tokens, dtype=np.int32)
    return whole.data.cast("B") if len(whole) else memoryview(b"")
