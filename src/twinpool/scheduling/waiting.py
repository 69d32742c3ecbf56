"""The waiting requests: by id, by arrival, and by the rank that an order gives them.

Kept sorted as they come and go, so that a look at the head of a long queue does not sort all of it.
Knows requests; what a rank means is the order's affair.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import islice

from twinpool.errors import InvariantError
from twinpool.scheduling.request import Request

# So many at once are put in their places one by one.
FEW = 64


class Ranking:
    """Requests sorted by a rank that each was given, of equals the older first."""

    def __init__(self) -> None:
        # Numbers differ, so that requests themselves are never compared.
        self._entries: list[tuple[int, int, Request]] = []
        self._ranks: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def place(self, request: Request, rank: int) -> None:
        """Give a request a rank, instead of the one that it had.

        Cost:
            Logarithmic, and a move of what lies behind it.
        """
        if self._ranks.get(request.number) == rank:
            return
        self.drop(request)
        self._ranks[request.number] = rank
        insort(self._entries, (rank, request.number, request))

    def place_all(self, requests: Sequence[Request], ranks: Sequence[int]) -> None:
        """Give ranks to requests that have none yet.

        Cost:
            That of `place` for each while they are few; else one sort of what is there and what
            comes, most of which is sorted already.
        """
        if len(requests) <= FEW:
            for request, rank in zip(requests, ranks, strict=True):
                self.place(request, rank)
            return
        for request, rank in zip(requests, ranks, strict=True):
            self._ranks[request.number] = rank
            self._entries.append((rank, request.number, request))
        self._entries.sort()

    def drop(self, request: Request) -> None:
        """Forget a request, if it is known."""
        if request.number in self._ranks:
            del self._entries[self._place_of(request)]
            del self._ranks[request.number]

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._ranks.clear()

    def first(self, count: int) -> list[Request]:
        """Return the `count` requests of lowest rank, in order."""
        return [entry[2] for entry in self._entries[:count]]

    def before(self, request: Request) -> list[Request]:
        """Return those that stand before a request that is known, in order.

        Cost:
            Linear in what is returned.
        """
        return self.first(self._place_of(request))

    def numbers(self) -> list[int]:
        """Return the numbers of all that are known, in order of rank."""
        return [number for _, number, _ in self._entries]

    def audit(self) -> None:
        """Check that the entries are sorted, and as the requests were given ranks.

        Raises:
            InvariantError: If they are not.
        """
        found = [(rank, number) for rank, number, _ in self._entries]
        if found != sorted((rank, number) for number, rank in self._ranks.items()):
            raise InvariantError("the entries of a ranking are not its ranks in order")

    def _place_of(self, request: Request) -> int:
        entry = (self._ranks[request.number], request.number)
        return bisect_left(self._entries, entry)


class Waiting:
    """The queue.

    Attributes:
        by_id: All that wait, in the order in which they came to the queue: who was retracted
            stands behind all that came before.
        by_arrival: The same in the order in which they arrived.
        ranked: Those that an order has given a rank; whoever leaves the queue leaves it, too.
        doubtful: By number, those whose rank may have changed since it was given; likewise.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Request] = {}
        self.by_arrival = Ranking()
        self.ranked = Ranking()
        self.doubtful: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.by_id[request.request_id] = request
        self.by_arrival.place(request, request.number)

    def pop(self, request_id: int) -> Request | None:
        """Take a request out of the queue; None when it is not in it.

        Cost:
            Logarithmic, and a move of what lies behind it.
        """
        request = self.by_id.pop(request_id, None)
        if request is not None:
            self.by_arrival.drop(request)
            self.ranked.drop(request)
            self.doubtful.pop(request.number, None)
        return request

    def between(self, start: int, stop: int) -> list[Request]:
        """Return those at places from `start` to before `stop`, in the order of coming.

        Cost:
            Linear in `stop`, of a few nanoseconds each.
        """
        return list(islice(self.by_id.values(), start, stop))

    def audit(self) -> None:
        """Check that all views of the queue agree, and that each is sorted.

        Raises:
            InvariantError: If they do not.
        """
        waiting = {request.number for request in self.by_id.values()}
        if self.by_arrival.numbers() != sorted(waiting):
            raise InvariantError("the queue by arrival is not the queue")
        if not waiting.issuperset(self.ranked.numbers()):
            raise InvariantError("one that does not wait has a rank in the queue")
        if not waiting.issuperset(self.doubtful):
            raise InvariantError("one that does not wait has a rank in doubt")
        for ranking in (self.by_arrival, self.ranked):
            ranking.audit()

    def unranked(self) -> list[Request]:
        """Return those that have come since all that wait were given ranks, in that order.

        Cost:
            Linear in what is returned.
        """
        count = len(self.by_id) - len(self.ranked)
        latest = list(islice(reversed(self.by_id.values()), count))
        return latest[::-1]
