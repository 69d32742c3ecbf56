"""The queue of units by value: buckets of like units, each in order of use.

Worth falls with age, by another curve for every class, so two units may change places while both
rest. Within a bucket they cannot: there the oldest is worth least. So only the first of each bucket
is weighed, and their number does not grow with the cache. What was weighed is sorted and holds
until the age or the likelihoods have moved on; where the first is no candidate any more it was
worth less than all behind it, so only the bucket that wins is looked at again.

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
# Worth, use, depth and number: smaller goes first.
Key = tuple[float, int, int, int]
# Stale entries of what was weighed that are borne, beside as many as there are buckets.
MAX_STALE = 64


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
        # Of buckets that were weighed: never more than the key of the least of their candidates.
        self._weighed: dict[Bucket, Key] = {}
        # The others that may have candidates.
        self._doubtful: set[Bucket] = set()
        # What was weighed by key, and by the tick until which that holds; some of it is stale.
        self._by_key: list[tuple[Key, Bucket]] = []
        self._by_end: list[tuple[int, Key, Bucket]] = []
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
            self._doubt(bucket)
        self._num_entries += 1
        if self._num_entries > 2 * len(self._known) + 1024:
            self.rekey()

    def peek(self) -> tuple[Key, Node] | None:
        """Return the candidate that is worth least, and its key; None where there is none.

        Cost:
            Logarithmic in the buckets and candidates.
        """
        while (best := self._least()) is not None:
            key, bucket = best
            first = self._first(bucket)
            if first is not None and first[:3] == key[1:]:
                return key, first[3]
            self._doubt(bucket)
        return None

    def pop(self) -> Node | None:
        """Take the candidate that is worth least out of the queue, or None.

        The caller evicts it, or pushes it again.

        Cost:
            As of `peek`.
        """
        found = self.peek()
        if found is None:
            return None
        node = found[1]
        bucket = self._known.pop(node.number)[0]
        heapq.heappop(self._heaps[bucket])
        self._num_entries -= 1
        self._doubt(bucket)
        return node

    def _least(self) -> tuple[Key, Bucket] | None:
        """Return the bucket whose first was worth least when it was looked at, and its key."""
        policy, weighed, by_key, by_end = self._policy, self._weighed, self._by_key, self._by_end
        if self._version != policy.returns.version:
            self._version = policy.returns.version
            self._doubt_all()
        while by_end and by_end[0][0] <= policy.now:
            _, key, bucket = heapq.heappop(by_end)
            if weighed.get(bucket) == key:
                self._doubt(bucket)
        for bucket in self._doubtful:
            first = self._first(bucket)
            if first is not None:
                worth, until = policy.weigh(bucket, first[0])
                weighed[bucket] = key = (worth, *first[:3])
                heapq.heappush(by_key, (key, bucket))
                heapq.heappush(by_end, (until, key, bucket))
        self._doubtful.clear()
        if max(len(by_key), len(by_end)) > 2 * len(weighed) + MAX_STALE:
            # What is out of date goes when it is first; what would be late comes up too seldom.
            self._doubt_all()
            return self._least()
        while by_key and weighed.get(by_key[0][1]) != by_key[0][0]:
            heapq.heappop(by_key)
        return by_key[0] if by_key else None

    def _doubt(self, bucket: Bucket) -> None:
        """Have a bucket weighed anew before the next look."""
        self._weighed.pop(bucket, None)
        self._doubtful.add(bucket)

    def _doubt_all(self) -> None:
        self._weighed.clear()
        self._by_key.clear()
        self._by_end.clear()
        self._doubtful = set(self._heaps)

    def rekey(self) -> None:
        """Sort anew.

        Cost:
            Linear in the entries.
        """
        nodes = self.candidates()
        self._heaps, self._known, self._num_entries = {}, {}, 0
        self._doubt_all()
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
        heap = self._heaps.get(bucket, [])
        while heap:
            used, _, number, node = heap[0]
            known = self._known.get(number)
            if known is not None and known[0] == bucket and known[1] == used:
                if self._is_candidate(node):
                    return heap[0]
                del self._known[number]
            heapq.heappop(heap)
            self._num_entries -= 1
        self._heaps.pop(bucket, None)
        return None
