"""Queue order: which waiting request is looked at first.

A policy is one function of the queue; it knows the cache's matches and no pool sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twinpool.errors import ConfigError
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree import Match
from twinpool.scheduling.request import Request

# Above this many waiting requests matching all of them costs more than the order gains.
MAX_MATCHED_QUEUE = 128
# A request that was passed over this often goes first: nobody starves.
MAX_PASSED = 64


class QueueOrder(Protocol):
    """Sorts the waiting requests."""

    name: str

    def sort(self, waiting: Sequence[Request], cache: PrefixCache) -> list[Request]:
        """Return the waiting requests in the order in which they are looked at."""
        ...


class Fcfs:
    """First come, first served; what was retracted keeps its place."""

    name = "fcfs"

    def sort(self, waiting: Sequence[Request], cache: PrefixCache) -> list[Request]:
        """Return the requests by arrival."""
        return sorted(waiting, key=lambda request: request.number)


class Lpm:
    """Longest prefix match first, by arrival among equals.

    Source: reference engine, policy `lpm`. Ours bounds how often a request is passed over.
    """

    name = "lpm"

    def sort(self, waiting: Sequence[Request], cache: PrefixCache) -> list[Request]:
        """Return the requests by matched depth, the overdue ones first."""
        if len(waiting) > MAX_MATCHED_QUEUE:
            return sorted(waiting, key=lambda request: request.number)
        return sorted(
            waiting,
            key=lambda request: (
                request.num_passed < MAX_PASSED,
                -known_match(request, cache).depth if request.num_passed < MAX_PASSED else 0,
                request.number,
            ),
        )


def known_match(request: Request, cache: PrefixCache) -> Match:
    """Match a waiting request, once per state of the tree.

    Changes:
        The request remembers the match and the cache's version.
    """
    if request.known_match is None or request.known_version != cache.version:
        if request.wants_prompt_logprobs:
            # Logprobs of the prompt need every position to go through the model.
            request.known_match = cache.match_nothing()
        else:
            request.known_match = cache.match(request.arrival.namespace, request.tokens)
        request.known_version = cache.version
    return request.known_match


_ORDERS: dict[str, Callable[[], QueueOrder]] = {"fcfs": Fcfs, "lpm": Lpm}
ORDER_NAMES = tuple(_ORDERS)


def queue_order(name: str) -> QueueOrder:
    """Return the order of a name.

    Raises:
        ConfigError: If there is no such order.
    """
    try:
        return _ORDERS[name]()
    except KeyError:
        raise ConfigError(
            f"unknown schedule policy {name!r}", hint=f"one of {', '.join(ORDER_NAMES)}"
        ) from None
