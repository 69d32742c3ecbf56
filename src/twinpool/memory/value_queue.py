"""The queue of units by value: buckets of like units, each in order of use.

Worth falls with age, by another curve for every class, so two units may change places while both
rest. Within a bucket they cannot: there the oldest is worth least. So only the first of each bucket
is weighed, and their number does not grow with the cache. What was weighed is remembered until the
age or the likelihoods have moved on; where the first is no candidate any more it was worth less
than all behind it, so only the bucket that wins is looked at again.

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
# Worth, use, depth and number of a bucket's first, and the tick until which that is its worth.
Weighed = tuple[tuple[float, int, int, int], int]


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
        # Of buckets: never more than the least of their candidates is worth.
        self._weighed: dict[Bucket, Weighed] = {}
        self._version = policy.returns.version

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
        heap = self._heaps.setdefault(bucket, [])
        heapq.heappush(heap, (used, -node.depth, node.number, node))
        if heap[0][3] is node:
            self._weighed.pop(bucket, None)
        self._num_entries += 1
        if self._num_entries > 2 * len(self._known) + 1024:
            self.rekey()

    def pop(self) -> Node | None:
        """Take the candidate that is worth least out of the queue, or None.

        The caller evicts it, or pushes it again.

        Cost:
            A comparison for each bucket, and logarithmic in the candidates.
        """
        while (best := self._least()) is not None:
            supposed, _ = self._weighed.pop(best)
            first = self._first(best)
            if first is not None and first[:3] == supposed[1:]:
                heapq.heappop(self._heaps[best])
                self._num_entries -= 1
                del self._known[first[2]]
                return first[3]
        return None

    def _least(self) -> Bucket | None:
        """Return the bucket whose first was worth least when it was looked at."""
        policy, weighed = self._policy, self._weighed
        if self._version != policy.returns.version:
            self._version = policy.returns.version
            weighed.clear()
        best: Bucket | None = None
        best_key: tuple[float, int, int, int] | None = None
        for bucket in list(self._heaps):
            known = weighed.get(bucket)
            if known is None or known[1] <= policy.now:
                first = self._first(bucket)
                if first is None:
                    weighed.pop(bucket, None)
                    continue
                worth, until = policy.weigh(bucket, first[0])
                known = weighed[bucket] = ((worth, *first[:3]), until)
            if best_key is None or known[0] < best_key:
                best, best_key = bucket, known[0]
        return best

    def rekey(self) -> None:
        """Sort anew.

        Cost:
            Linear in the entries.
        """
        nodes = self.candidates()
        self._heaps, self._known, self._num_entries = {}, {}, 0
        self._weighed.clear()
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
