"""Namespaces: the roots of a tree by name, and when what each of them holds changed last.

Knows roots; nothing of what stands below them.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.memory.node import Node


@dataclass(slots=True)
class _Namespace:
    """What is known of a namespace beside its nodes.

    Attributes:
        name: Its name.
        changed_at: The version at which it changed last.
    """

    name: str
    changed_at: int


class Namespaces:
    """The namespaces that hold something.

    Attributes:
        roots: By name.
        version: Rises with every change of any of them.
    """

    def __init__(self) -> None:
        self.roots: dict[str, Node] = {}
        self.version = 0
        self._by_root: dict[int, _Namespace] = {}

    def __len__(self) -> int:
        return len(self._by_root)

    def add(self, name: str, root: Node) -> None:
        """Hear of a new namespace."""
        self.version += 1
        self.roots[name] = root
        self._by_root[root.number] = _Namespace(name, self.version)

    def forget(self, root: Node) -> None:
        """Forget a namespace that holds nothing any more, so that salts do not pile up."""
        del self.roots[self._by_root.pop(root.number).name]

    def note_change(self, node: Node) -> None:
        """Hear that the namespace of a node changes."""
        self.version += 1
        self._by_root[node.root.number].changed_at = self.version

    def changed_at(self, name: str) -> int:
        """Return the version at which a namespace changed last; -1 while it holds nothing.

        While that stays the same, so does what a prompt matches.
        """
        root = self.roots.get(name)
        return -1 if root is None else self._by_root[root.number].changed_at

    def name_of(self, node: Node) -> str:
        """Return the name of the namespace that a node of the tree belongs to."""
        return self._by_root[node.root.number].name
