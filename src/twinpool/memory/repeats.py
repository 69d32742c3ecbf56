"""Repeats: how many returns of a unit follow its next one, within a time that is worth a place.

A unit that returns goes on to another class, where it may return again; the last class of a chain
goes on to itself, as a prefix does that all sessions share. What counts is what returns while
memory is held as long as a first return takes on average: a prefix that everybody uses counts many
times, and one that returns as seldom as others little more than once.

    class: never wanted -> wanted once -> wanted oftener -.
                                               ^----------'

Knows numbers of classes and what was counted of them; no tree and no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from twinpool.memory.returns import Returns


class Repeats:
    """Works out the expected returns after the next one, anew when likelihoods change.

    Args:
        returns: What has been counted.
        next_classes: Of every class, the one of a unit that has returned: its own for the last of
            a chain, else one with a higher number.
    """

    def __init__(self, returns: Returns, next_classes: Sequence[int]) -> None:
        self._returns = returns
        self._next = next_classes
        self._first = sorted(set(range(len(next_classes))) - set(next_classes))
        self._after = [0.0] * len(next_classes)
        # None of the versions there are: what has been counted before counts.
        self._version = -1

    def after(self, kind: int) -> float:
        """Return how many returns are expected beyond the next one of a unit of a class.

        Cost:
            One look-up; linear in the classes where likelihoods have changed.
        """
        if self._version != self._returns.version:
            self._version = self._returns.version
            self._refresh()
        return self._after[kind]

    def _refresh(self) -> None:
        horizon = self._horizon()
        for kind in reversed(range(len(self._next))):
            following = self._next[kind]
            if following == kind:
                self._after[kind] = self._of_last(kind, horizon)
            else:
                chance = self._returns.seen(following, 0)
                self._after[kind] = chance * (1.0 + self._after[following])

    def _horizon(self) -> float:
        """Return the mean age at which units return for the first time, 0 where none has."""
        found = [self._returns.ages(kind) for kind in self._first]
        count = sum(number for number, _ in found)
        return sum(total for _, total in found) / count if count else 0.0

    def _of_last(self, kind: int, horizon: float) -> float:
        """Return the further returns of the last class of a chain: as many as go on, in time."""
        count, total = self._returns.ages(kind)
        if not count:
            return 0.0
        mean_age = max(total / count, 1.0)
        # Always below 1: not even what has never been lost is taken to return for ever.
        chance = self._returns.seen(kind, 0)
        return min(chance / (1.0 - chance), horizon / mean_age)
