"""Queue order: which waiting request is looked at first.

A policy is one function of the queue; it knows the cache's matches and no pool sizes. `fcfs` and
`lpm` are twinpool's; their twins `Reference...` reproduce what the reference engine does beside
sorting: looking at a waiting request keeps its prefix recent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twinpool.errors import ConfigError
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree import RadixTree
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE, known_match
from twinpool.scheduling.least_work import LeastWork
from twinpool.scheduling.request import Request
from twinpool.scheduling.waiting import Waiting
from twinpool.scheduling.work_clock import WorkClock

# A request that was passed over this often goes first: nobody starves.
MAX_PASSED = 64
# Of the reference engine: every so many passes `fcfs` keeps the prefixes of the queue recent, and
# `lpm` puts off a request that finds fewer tokens in the cache, and more in the queue before it.
REFRESH_PASSES = 32
POSTPONED_TOKENS = 32


class QueueOrder(Protocol):
    """Says who is looked at first.

    Attributes:
        name: The flag's spelling.
        is_sparing: True when a request that would push out what will be wanted again waits until
            that has been earned; see `Rotation`.
        counts_passes: True when it heeds how often a request was passed over.
    """

    name: str
    is_sparing: bool
    counts_passes: bool

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        """Return the first `count` requests in the order in which they are looked at.

        Until the next call nobody else that waits may be matched, but for who comes to the queue.
        """
        ...


class Fcfs:
    """First come, first served; what was retracted keeps its place."""

    name = "fcfs"
    is_sparing = False
    counts_passes = False

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        """Return the requests by arrival."""
        return waiting.by_arrival.first(count)


class Lpm:
    """Longest prefix match first, by arrival among equals.

    Source: reference engine, policy `lpm`. Ours bounds how often a request is passed over.
    """

    name = "lpm"
    is_sparing = False
    counts_passes = True

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        """Return the requests by matched depth, the overdue ones first."""
        if len(waiting) > MAX_MATCHED_QUEUE:
            return waiting.by_arrival.first(count)
        queue = sorted(
            waiting.by_id.values(),
            key=lambda request: (
                request.num_passed < MAX_PASSED,
                -known_match(request, cache).depth if request.num_passed < MAX_PASSED else 0,
                request.number,
            ),
        )
        return queue[:count]


class ReferenceFcfs:
    """First come, first served, and the prefixes of the queue are kept recent now and then.

    The head is touched last, so that what the tail waits for is evicted first.

    Source: reference engine, `_touch_waiting_prefixes`; a pass of ours counts when the tree has
    changed since the last one, as its passes stop while nothing can be admitted.
    """

    name = "fcfs"
    is_sparing = False
    counts_passes = False

    def __init__(self) -> None:
        self._seen = -1
        self._passes = 0

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        """Return the requests by arrival; every 32nd pass touches what they match.

        Changes:
            Recency in the cache.
        """
        if cache.version != self._seen:
            if self._passes % REFRESH_PASSES == 0:
                for request in reversed(waiting.by_arrival.first(MAX_MATCHED_QUEUE)):
                    cache.touch(known_match(request, cache))
            self._passes += 1
            self._seen = cache.version
        return waiting.by_arrival.first(count)


class ReferenceLpm:
    """Longest prefix match first; what another waiting request will bring is put off.

    Args:
        unit_tokens: Tokens that one key of a prompt stands for.

    Source: reference engine, policy `lpm`: it matches the whole queue in every pass, which makes
    all of its prefixes recent, and bounds no wait. Above 128 waiting requests it is `fcfs`.
    """

    name = "lpm"
    is_sparing = False
    counts_passes = False

    def __init__(self, unit_tokens: int = 1) -> None:
        self._few = POSTPONED_TOKENS // unit_tokens
        self._many = -(-POSTPONED_TOKENS // unit_tokens)
        self._seen = -1

    def first(self, waiting: Waiting, cache: PrefixCache, count: int) -> list[Request]:
        """Return the requests by matched depth, those put off last.

        Changes:
            Recency in the cache.
        """
        if len(waiting) > MAX_MATCHED_QUEUE:
            return waiting.by_arrival.first(count)
        queue = waiting.by_arrival.first(len(waiting))
        if cache.version != self._seen:
            for request in queue:
                cache.touch(known_match(request, cache))
            self._seen = cache.version
        put_off = self._put_off(queue, cache)
        queue.sort(
            key=lambda request: (
                request.request_id in put_off,
                -known_match(request, cache).depth,
                request.number,
            ),
        )
        return queue[:count]

    def _put_off(self, queue: Sequence[Request], cache: PrefixCache) -> set[int]:
        """Name the requests that find nothing in the cache and much in the queue before them."""
        ahead = RadixTree(needs_state=False)
        put_off = set()
        for request in queue:
            if known_match(request, cache).depth > self._few:
                continue
            namespace, tokens = request.arrival.namespace, request.tokens
            if ahead.match(namespace, tokens).depth >= self._many:
                put_off.add(request.request_id)
            else:
                ahead.insert(ahead.root(namespace), tokens, tokens, [])
        return put_off


ORDER_NAMES = ("fcfs", "lpm", "least-work")


def queue_order(
    name: str, clock: WorkClock, *, as_reference: bool = False, unit_tokens: int = 1
) -> QueueOrder:
    """Return the order of a name.

    Args:
        name: One of `ORDER_NAMES`.
        clock: By which `least-work` ages requests.
        as_reference: True for what the reference engine does under that name.
        unit_tokens: Tokens that one key of a prompt stands for.

    Raises:
        ConfigError: If there is no such order.
    """
    orders: dict[str, Callable[[], QueueOrder]] = {
        "fcfs": ReferenceFcfs if as_reference else Fcfs,
        "lpm": (lambda: ReferenceLpm(unit_tokens)) if as_reference else Lpm,
        "least-work": lambda: LeastWork(clock),
    }
    try:
        return orders[name]()
    except KeyError:
        raise ConfigError(
            f"unknown schedule policy {name!r}", hint=f"one of {', '.join(ORDER_NAMES)}"
        ) from None
