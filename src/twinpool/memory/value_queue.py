"""The queue of units by value: buckets of like units, each in order of use.

Worth falls with age, by another curve for every class, so two units may change places while both
rest. Within a bucket they cannot: there the oldest is worth least. So only the first of each bucket
is weighed, and their number does not grow with the cache.

    class 7, level 3:   old --- . --- . --- young
    class 7, level 4:   old --- young                 the least worthy of the first column goes
    class 9, level 3:   old --- . --- young

Knows a policy and nodes; no pool and no request.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from twinpool.memory.node import Node
from twinpool.memory.value import Bucket, Value, used_at

Entry = tuple[int, int, int, Node]


class ValueQueue:
    """Candidates for eviction; the interface of `VictimQueue`.

    Args:
        policy: Says what units are worth.
        is_candidate: True when a node may be evicted now.

    Every change that makes a node a candidate, or changes its bucket or use, must be followed by
    `push`.
    """

    def __init__(self, policy: Value, is_candidate: Callable[[Node], bool]) -> None:
        self._policy = policy
        self._is_candidate = is_candidate
        self._heaps: dict[Bucket, list[Entry]] = {}
        # As what each node was last pushed: other entries of it are stale.
        self._known: dict[int, tuple[Bucket, int, Node]] = {}
        self._num_entries = 0

    def push(self, node: Node) -> None:
        """Make a node known as it is now; one that is no candidate is ignored.

        Cost:
            Logarithmic in the candidates.
        """
        if not self._is_candidate(node):
            return
        bucket, used = self._policy.bucket(node), used_at(node)
        known = self._known.get(node.number)
        if known is not None and known[:2] == (bucket, used):
            return
        self._known[node.number] = (bucket, used, node)
        heapq.heappush(self._heaps.setdefault(bucket, []), (used, -node.depth, node.number, node))
        self._num_entries += 1
        if self._num_entries > 2 * len(self._known) + 1024:
            self.rekey()

    def pop(self) -> Node | None:
        """Take the candidate that is worth least out of the queue, or None.

        The caller evicts it, or pushes it again.

        Cost:
            One look at each bucket, and logarithmic in the candidates.
        """
        best: Bucket | None = None
        best_key: tuple[float, int, int, int] | None = None
        for bucket in list(self._heaps):
            first = self._first(bucket)
            if first is None:
                continue
            key = (self._policy.worth(bucket, first[0]), *first[:3])
            if best_key is None or key < best_key:
                best, best_key = bucket, key
        if best is None:
            return None
        node = heapq.heappop(self._heaps[best])[3]
        self._num_entries -= 1
        del self._known[node.number]
        return node

    def rekey(self) -> None:
        """Sort anew.

        Cost:
            Linear in the entries.
        """
        nodes = self.candidates()
        self._heaps, self._known, self._num_entries = {}, {}, 0
        for node in nodes:
            self.push(node)

    def candidates(self) -> list[Node]:
        """Return the nodes that may be evicted now, each once, in no order that means anything."""
        return [node for _, _, node in self._known.values() if self._is_candidate(node)]

    def current(self) -> set[int]:
        """Return the numbers of the nodes that are queued as what they are, for the audit."""
        return {
            number
            for number, (bucket, used, node) in self._known.items()
            if (bucket, used) == (self._policy.bucket(node), used_at(node))
        }

    def _first(self, bucket: Bucket) -> Entry | None:
        """Return the oldest unit of a bucket, without the stale entries before it."""
        heap = self._heaps[bucket]
        while heap:
            used, _, number, node = heap[0]
            known = self._known.get(number)
            if known is not None and known[0] == bucket and known[1] == used:
                if self._is_candidate(node):
                    return heap[0]
                del self._known[number]
            heapq.heappop(heap)
            self._num_entries -= 1
        del self._heaps[bucket]
        return None
