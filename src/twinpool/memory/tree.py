r"""The radix tree: token prefixes, the rows that hold their KV, and the checkpoints on them.

A pure structure. It knows no pool: whatever an operation removes or does not need is returned to
the caller, who owns it from then on. It never decides what to evict.

    root --[a b c]-- n1* --[d e]-- n2 --[f]-- n3*        * a checkpoint: the state after the
                              \----[g]-- n4*               node's last token
Match of `a b c d e x`: KV to depth 5 (n2), usable to depth 3 (n1): n2 is a tombstone for state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twinpool.errors import InvariantError
from twinpool.memory.allocator import RowArray
from twinpool.memory.locks import Locks
from twinpool.memory.namespaces import Namespaces
from twinpool.memory.node import NO_ROWS, NO_SLOT, Node, TokenArray
from twinpool.memory.token_bytes import TOKEN_BYTES, bytes_of, num_shared
from twinpool.memory.tree_records import Inserted, Match, Removed, nothing_matched


class RadixTree:
    """Prefixes of all namespaces.

    Args:
        page_size: Depths of nodes are multiples of it.
        needs_state: True when a prefix is usable only at a checkpoint; False for models without
            linear layers, where any KV prefix is.

    Attributes:
        locks: What running requests protect.
        namespaces: Which there are, and when each changed last.
    """

    def __init__(self, *, page_size: int = 1, needs_state: bool = True) -> None:
        self.page_size = page_size
        self.needs_state = needs_state
        self._page_bytes = page_size * TOKEN_BYTES
        self.namespaces = Namespaces()
        self._count = 0
        # Told of every node that has come to own rows, where somebody keeps a map of owners.
        self.note_rows: Callable[[Node], None] | None = None
        self.locks = Locks()
        self.num_rows = 0
        self.num_checkpoints = 0

    @property
    def roots(self) -> dict[str, Node]:
        """The roots of all namespaces that hold something, by name."""
        return self.namespaces.roots

    def root(self, namespace: str) -> Node:
        """Return the root of a namespace, made on first use."""
        root = self.roots.get(namespace)
        if root is None:
            root = self._new(b"", NO_ROWS, None)
            self.namespaces.add(namespace, root)
        return root

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
        ids = bytes_of(tokens)
        page = self._page_bytes
        node, best, at = root, root, 0
        while at < limit:
            child = node.children.get(ids[at : at + page].tobytes())
            if child is None:
                break
            shared = num_shared(child.ids, ids, at, limit, page)
            at += shared
            if shared < len(child.ids):
                if not self.needs_state:
                    return Match(child, at // TOKEN_BYTES, at // TOKEN_BYTES)
                break
            node = child
            if node.checkpoint != NO_SLOT or not self.needs_state:
                best = node
        return Match(best, best.depth, at // TOKEN_BYTES)

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
        self.namespaces.note_change(start)
        end = len(tokens)
        # Ids behind the start alone: what is before it is known to be on its path.
        ids = bytes_of(tokens[start.depth :])
        node, length = self._walk(start, ids)
        depth = start.depth + length // TOKEN_BYTES
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
                self.locks.num_checkpoints += at.slot_locks > 0
                result.placed.append(at)
        result.placed.reverse()
        return result

    def split_at(self, node: Node, depth: int) -> Node:
        """Return the node that ends at `depth` on the path to `node`, split if there is none."""
        return self._node_at(node, depth)

    def remove_checkpoint(self, node: Node) -> int:
        """Take a checkpoint out and return its slot, which the caller then owns.

        Raises:
            InvariantError: If there is none or it is locked.
        """
        if not node.has_checkpoint or node.slot_locks:
            raise InvariantError("a checkpoint is removed that is missing or locked")
        self.namespaces.note_change(node)
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
        self.namespaces.note_change(node)
        removed.rows.append(node.rows)
        removed.num_rows += len(node.rows)
        removed.nodes.append(node)
        self.num_rows -= len(node.rows)
        del parent.children[node.ids[: self._page_bytes]]
        node.parent = None
        if parent.parent is None and not parent.children:
            self.namespaces.forget(parent)
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
            shared = num_shared(child.ids, ids, at, len(ids), self._page_bytes)
            at += shared
            if shared < len(child.ids):
                return self._split(child, shared // TOKEN_BYTES), at
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
        self.namespaces.note_change(node)
        cut = length * TOKEN_BYTES
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
