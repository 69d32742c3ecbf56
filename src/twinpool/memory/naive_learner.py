"""What the naive twin has learned of classes of units: how likely each is to be wanted again.

Remembers what was evicted, counts what is wanted again at which age and what never is, and works
likelihoods out in fractions, from the definition. Knows no books.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from twinpool.memory.naive_prefixes import Prefix, depth_of

# Why a checkpoint was left, requests that went on from it, turns before it; the last two bounded.
Kind = tuple[str, int, int]

NUM_AGES = 32
TAIL_TOKENS = 32
MIN_GHOSTS = 64
GHOSTS_PER_CHECKPOINT = 4
# A class is worked out anew once a quarter of its events are new, or 32 of them.
REFRESH_EVENTS = 32
REFRESH_PART = Fraction(1, 4)
MAX_HITS = 2
MEMORY_EVENTS = 2048
PRIOR_EVENTS = 4
PRIOR_HAZARD = Fraction(1, 50)


@dataclass(frozen=True, slots=True)
class NaiveGhost:
    """A unit that was evicted: its class, its last use, its place, and how its prefix ends."""

    kind: Kind
    used: int
    namespace: str
    depth: int
    tail: tuple[int, ...]


class NaiveLearner:
    """Ghosts, the oldest first, and counts by class."""

    def __init__(self) -> None:
        self._ghosts: list[NaiveGhost] = []
        self._returned: dict[Kind, list[Fraction]] = {}
        self._lost: dict[Kind, Fraction] = {}
        self._num_events: dict[Kind, int] = {}
        self._num_unread: dict[Kind, int] = {}
        self._likelihoods: dict[Kind, list[Fraction]] = {}
        # By what was seen alone: of units that go on to a class, how many return; and at what ages.
        self._returning: dict[Kind, Fraction] = {}
        self._ages: dict[Kind, tuple[Fraction, Fraction]] = {}

    def likelihood(self, kind: Kind, age: int) -> Fraction:
        """Return how likely a unit is to be wanted again, as far as that has been worked out."""
        return self._likelihoods.get(kind, _UNKNOWN)[_age_class(age)]

    def further(self, kind: Kind) -> Fraction:
        """Return the returns that are expected of a unit of a class beyond its next one."""
        why, hits, generation = kind
        last = (why, MAX_HITS, generation)
        goes_on = self._returning.get(last, Fraction(0))
        count, total = self._ages.get(last, (Fraction(0), Fraction(0)))
        further = Fraction(0)
        if count:
            in_time = self._first_age() / max(total / count, Fraction(1))
            further = min(goes_on / (1 - goes_on), in_time)
        for following in range(MAX_HITS, hits, -1):
            further = self._returning.get((why, following, generation), Fraction(0)) * (1 + further)
        return further

    def _first_age(self) -> Fraction:
        """Return the mean age at which units return for the first time."""
        firsts = [ages for (_, hits, _), ages in self._ages.items() if hits == 0]
        count = sum((count for count, _ in firsts), Fraction(0))
        return sum((total for _, total in firsts), Fraction(0)) / count if count else Fraction(0)

    def remember(self, prefix: Prefix, kind: Kind, used: int, num_checkpoints: int) -> None:
        """Remember a unit that goes; the oldest that are too many have not been wanted again."""
        depth, tail = depth_of(prefix), prefix[1][-TAIL_TOKENS:]
        ghost = NaiveGhost(kind, used, prefix[0], depth, tail)
        place = (ghost.namespace, depth, tail)
        self._ghosts = [g for g in self._ghosts if (g.namespace, g.depth, g.tail) != place]
        self._ghosts.append(ghost)
        while len(self._ghosts) > max(MIN_GHOSTS, GHOSTS_PER_CHECKPOINT * num_checkpoints):
            self.note_loss(self._ghosts.pop(0).kind)

    def find(self, prompt: Prefix, depth: int) -> NaiveGhost | None:
        """Take the deepest ghost out that a prompt would have reused, deeper than it is cached."""
        tokens = prompt[1]
        missed = [
            ghost
            for ghost in self._ghosts
            if ghost.namespace == prompt[0]
            and depth < ghost.depth < len(tokens)
            and ghost.tail == tokens[: ghost.depth][-TAIL_TOKENS:]
        ]
        ghost = max(missed, key=lambda ghost: ghost.depth, default=None)
        if ghost is not None:
            self._ghosts.remove(ghost)
        return ghost

    def note_return(self, kind: Kind, age: int) -> None:
        """Count a unit that was wanted again at an age."""
        returned = self._returned.setdefault(kind, [Fraction(0)] * NUM_AGES)
        returned[_age_class(age)] += 1
        self._count(kind)

    def note_loss(self, kind: Kind) -> None:
        """Count a unit that was not wanted again."""
        self._lost[kind] = self._lost.get(kind, Fraction(0)) + 1
        self._count(kind)

    def _count(self, kind: Kind) -> None:
        self._num_events[kind] = self._num_events.get(kind, 0) + 1
        self._num_unread[kind] = self._num_unread.get(kind, 0) + 1
        returned = self._returned.setdefault(kind, [Fraction(0)] * NUM_AGES)
        lost = self._lost.setdefault(kind, Fraction(0))
        if self._num_events[kind] >= MEMORY_EVENTS:
            self._num_events[kind] //= 2
            returned = self._returned[kind] = [count / 2 for count in returned]
            lost = self._lost[kind] = lost / 2
        needed = min(REFRESH_PART * self._num_events[kind], Fraction(REFRESH_EVENTS))
        if self._num_unread[kind] >= needed:
            self._num_unread[kind] = 0
            self._likelihoods[kind] = _likelihoods(returned, lost)
            self._returning[kind] = _likelihoods(returned, lost, prior=Fraction(0))[0]
            total = sum((_mean_age(age) * many for age, many in enumerate(returned)), Fraction(0))
            self._ages[kind] = (sum(returned, Fraction(0)), total)


def _likelihoods(
    returned: list[Fraction], lost: Fraction, prior: Fraction = PRIOR_HAZARD
) -> list[Fraction]:
    """Return the product-limit estimate by class of age: 1 less the chance of never returning."""
    found = []
    never = Fraction(1)
    for age in reversed(range(NUM_AGES)):
        at_risk = sum(returned[age:], lost)
        never *= 1 - (returned[age] + prior * PRIOR_EVENTS) / (at_risk + PRIOR_EVENTS)
        found.append(1 - never)
    return found[::-1]


def _age_class(age: int) -> int:
    """Return 0, 1, 2 for 2 to 3, 3 for 4 to 7, and so on."""
    number = 0
    while age > 0 and number < NUM_AGES - 1:
        age, number = age // 2, number + 1
    return number


def _mean_age(number: int) -> Fraction:
    """Return the age that stands for a class of ages."""
    return Fraction(3, 2) * 2 ** (number - 1) if number else Fraction(0)


_UNKNOWN = _likelihoods([Fraction(0)] * NUM_AGES, Fraction(0))
