"""Ghosts: units that were evicted not long ago, by which one sees what eviction cost.

A ghost keeps the place and the last tokens of a prefix, not its content. When a prompt comes that
would have reused it, the eviction was wrong by so much work; a ghost that fades unseen says that
it was right. Knows prefixes by namespace, depth and tail; no pool and no policy.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from twinpool.memory.node import Node, TokenArray
from twinpool.memory.token_bytes import TOKEN_BYTES

# Tokens by which a prefix is told from others of its depth. Two that end alike are taken for one:
# a statistic is off by one then, and nothing else.
TAIL_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Ghost:
    """One evicted unit.

    Attributes:
        kind: Its class.
        used: When it was last used, in ticks of the cache.
        depth: Tokens of its prefix.
    """

    kind: int
    used: int
    depth: int


class Ghosts:
    """The latest evicted units."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int, bytes], Ghost] = OrderedDict()
        # Ghosts by namespace and depth, so that few tails are compared.
        self._depths: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, namespace: str, tail: bytes, ghost: Ghost) -> None:
        """Remember a unit.

        Args:
            namespace: Of its prefix.
            tail: Its last tokens, from `tail_of`.
            ghost: What is known of it.
        """
        key = (namespace, ghost.depth, tail)
        if key in self._known:
            del self._known[key]
        else:
            depths = self._depths.setdefault(namespace, {})
            depths[ghost.depth] = depths.get(ghost.depth, 0) + 1
        self._known[key] = ghost

    def fade(self, limit: int) -> list[Ghost]:
        """Forget the oldest until no more than `limit` are left; returns them."""
        faded = []
        while len(self._known) > limit:
            key, ghost = self._known.popitem(last=False)
            self._forget(key)
            faded.append(ghost)
        return faded

    def take(self, namespace: str, tokens: TokenArray, above: int) -> Ghost | None:
        """Take the deepest ghost that a prompt would have reused below a depth, if there is one.

        Args:
            namespace: Of the prompt.
            tokens: The prompt.
            above: Depth to which it is cached.
        """
        depths = self._depths.get(namespace, {})
        for depth in sorted((d for d in depths if above < d < len(tokens)), reverse=True):
            key = (namespace, depth, tail_bytes(tokens[:depth]))
            ghost = self._known.pop(key, None)
            if ghost is not None:
                self._forget(key)
                return ghost
        return None

    def _forget(self, key: tuple[str, int, bytes]) -> None:
        depths = self._depths[key[0]]
        depths[key[1]] -= 1
        if not depths[key[1]]:
            del depths[key[1]]
            if not depths:
                del self._depths[key[0]]


def tail_of(node: Node) -> bytes:
    """Return the last tokens of a node's prefix, as bytes."""
    wanted = TAIL_TOKENS * TOKEN_BYTES
    tail = b""
    for step in node.path():
        tail = step.ids[-wanted:] + tail
        if len(tail) >= wanted:
            break
    return tail[-wanted:]


def tail_bytes(tokens: TokenArray) -> bytes:
    """Return the last tokens of a prefix, as bytes."""
    return tokens[-TAIL_TOKENS:].tobytes()
