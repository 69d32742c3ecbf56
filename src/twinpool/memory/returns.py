"""Returns: how likely a cached unit is to be wanted again, learned from this run.

Units of like behaviour share a class. Of every class it is counted at which ages units were wanted
again, evicted or not, and how many never were. Knows numbers of classes and ages; no tree and no
bytes.

Source: the product-limit estimate of Kaplan and Meier (1958), over ages in powers of two.
"""

from __future__ import annotations

from operator import mul

# Ages 0, 1, 2-3, 4-7, ... up to 2**30 and beyond.
NUM_AGES = 32
# Counts are halved after so many events of a class: what the traffic does now counts most.
MEMORY_EVENTS = 2048
# Likelihoods are worked out anew after so many events of a class, or where there are few after so
# small a part of them: until then they are as wrong as what was assumed.
REFRESH_EVENTS = 32
REFRESH_PART = 0.25
# What is assumed of a class until it is known, as so many events: a return is about as likely as
# not, at any age.
PRIOR_EVENTS = 4.0
PRIOR_HAZARD = 0.02
_MEAN_AGES = [0.0, *(1.5 * 2.0**age for age in range(NUM_AGES - 1))]


class Returns:
    """Counts returns and losses by class and age.

    Args:
        num_classes: Classes are 0 to `num_classes - 1`.

    Attributes:
        version: Rises whenever likelihoods have been worked out anew.
    """

    def __init__(self, num_classes: int) -> None:
        self._returned = [[0.0] * NUM_AGES for _ in range(num_classes)]
        self._lost = [0.0] * num_classes
        self._events = [0] * num_classes
        self._fresh = [0] * num_classes
        self._known = [likelihoods([0.0] * NUM_AGES, 0.0)] * num_classes
        self._seen = [[0.0] * NUM_AGES] * num_classes
        self._ages = [(0.0, 0.0)] * num_classes
        self.version = 0

    def note_return(self, kind: int, age: int) -> None:
        """Count a unit that was wanted again at an age.

        Changes:
            Now and then, the likelihoods of its class.
        """
        self._returned[kind][_bin(age)] += 1.0
        self._count(kind)

    def note_loss(self, kind: int) -> None:
        """Count a unit that was not wanted again.

        Changes:
            Now and then, the likelihoods of its class.
        """
        self._lost[kind] += 1.0
        self._count(kind)

    def likelihood(self, kind: int, age: int) -> float:
        """Return the chance that a unit of a class and age is wanted again, 0 to 1.

        It never rises with the age, so that of one class the oldest is the least likely.
        """
        return self._known[kind][_bin(age)]

    def seen(self, kind: int, age: int) -> float:
        """Return the same chance by what was seen alone: 0 of a class of which nothing is known.

        What may be lost is no reason to wait until something like it has been wanted once.
        """
        return self._seen[kind][_bin(age)]

    def ages(self, kind: int) -> tuple[float, float]:
        """Return the returns of a class and about the sum of their ages, as of its likelihoods.

        Ages count as the middle of their power of two.
        """
        return self._ages[kind]

    def _count(self, kind: int) -> None:
        self._events[kind] += 1
        self._fresh[kind] += 1
        if self._events[kind] >= MEMORY_EVENTS:
            self._events[kind] //= 2
            self._lost[kind] /= 2
            self._returned[kind] = [count / 2 for count in self._returned[kind]]
        if self._fresh[kind] >= min(REFRESH_EVENTS, REFRESH_PART * self._events[kind]):
            self._fresh[kind] = 0
            self.version += 1
            returned, lost = self._returned[kind], self._lost[kind]
            self._known[kind] = likelihoods(returned, lost)
            self._seen[kind] = likelihoods(returned, lost, prior=0.0)
            self._ages[kind] = (sum(returned), sum(map(mul, returned, _MEAN_AGES)))


def likelihoods(returned: list[float], lost: float, prior: float = PRIOR_HAZARD) -> list[float]:
    """Return the chance of a return by age.

    Args:
        returned: Returns by age.
        lost: Units that never returned.
        prior: Part of those at an age that is assumed to return then.
    """
    found = [0.0] * NUM_AGES
    chance, at_risk = 0.0, lost
    for age in reversed(range(NUM_AGES)):
        at_risk += returned[age]
        hazard = (returned[age] + prior * PRIOR_EVENTS) / (at_risk + PRIOR_EVENTS)
        chance = 1.0 - (1.0 - hazard) * (1.0 - chance)
        found[age] = chance
    return found


def _bin(age: int) -> int:
    return min(max(age, 0).bit_length(), NUM_AGES - 1)
