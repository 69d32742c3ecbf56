"""Value: recompute that a unit saves x the likelihood that it is wanted again, per byte.

A unit is a leaf's KV with its checkpoint, or an interior checkpoint alone. What it saves, and what
it frees, counts from the nearest checkpoint above it. The likelihood is learned from units that
behaved alike: left for the same reason, continued as often, of a session as far along. A prefix
that its own session has continued is one that has been wanted once already. What a waiting request
would reuse counts as certain, though it may still go.

A unit that many sessions share returns again and again: it is worth every return that it may have
while another of like likelihood returns once, and not the next one alone. So a short system prompt
that all requests begin with outlasts longer sessions of which each returns now and then.

Knows the tree's nodes, what prefixes cost and how units returned; no pool and no request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from twinpool.memory.node import COLDEST, Node
from twinpool.memory.place import PlaceKind
from twinpool.memory.repeats import Repeats
from twinpool.memory.returns import Returns
from twinpool.memory.work import NEUTRAL, PrefillWork

# Units wanted so often or oftener, and turns so far along or farther, are one class.
MAX_HITS = 2
MAX_GENERATION = 3
NUM_CLASSES = len(PlaceKind) * (MAX_HITS + 1) * (MAX_GENERATION + 1)
# Added to the class of a unit that a waiting request is about to reuse.
WANTED = NUM_CLASSES
# Savings per byte are told apart in steps of the square root of 2.
STEPS_PER_DOUBLING = 2
_NOTHING_SAVED = -10_000

# Class and level of a unit: what its worth depends on beside its age.
Bucket = tuple[int, int]


class Value:
    """The unit that is worth least goes first; of equals the oldest, then the deepest.

    Args:
        work: What prefixes of the model cost.

    Attributes:
        returns: What has been learned of classes.
        repeats: The returns that follow the next one, by class.
        now: The cache's tick, to which ages count.
    """

    name = "value"
    keeps_dead = False
    frees_leaf = True
    is_scaled = False
    heeds_path = True

    def __init__(self, work: PrefillWork = NEUTRAL) -> None:
        self.work = work
        self.returns = Returns(NUM_CLASSES)
        self.repeats = Repeats(self.returns, _next_classes())
        self.now = 0

    def pass_tick(self, now: int) -> None:
        """Hear how late it is."""
        self.now = now

    def row_key(self, node: Node) -> tuple[float, ...]:
        """Return the worth of a leaf as a unit."""
        return self.slot_key(node)

    def slot_key(self, node: Node) -> tuple[float, ...]:
        """Return the worth of a unit, as it is now."""
        used = used_at(node)
        return (self.worth(self.bucket(node), used), used, -node.depth, node.number)

    def measure(self, nodes: Sequence[Node]) -> None:
        """Measure nothing: worth has a scale of its own."""

    def bucket(self, node: Node) -> Bucket:
        """Return class and level of a unit.

        Two of one bucket are worth the same at the same age, and the older is worth less.
        """
        start = start_of(node)
        num_bytes = self.work.slot_bytes if node.has_checkpoint else 0
        if not node.children and not node.row_locks:
            num_bytes += self.work.row_bytes * (node.depth - start)
        kind = class_of(node) + (WANTED if node.num_wanting else 0)
        return kind, _level(self.work.saved(start, node.depth), max(num_bytes, 1))

    def worth_of_new(self, kind: PlaceKind, generation: int, start: int, end: int) -> float:
        """Return what a checkpoint would be worth per byte, with the KV that it keeps.

        Args:
            kind: Why it would be left.
            generation: Turns of its session that were cached before.
            start: Depth of the checkpoint above, or 0.
            end: Its depth.
        """
        num_bytes = self.work.slot_bytes + self.work.row_bytes * (end - start)
        level = _level(self.work.saved(start, end), max(num_bytes, 1))
        return self.worth((class_number(kind, 0, generation), level), self.now)

    def worth(self, bucket: Bucket, used: int) -> float:
        """Return what a unit of a bucket is worth per byte, in operations.

        Args:
            bucket: From `bucket`.
            used: When it was last used.
        """
        kind, level = bucket
        is_wanted, kind = divmod(kind, WANTED)
        scale: float = 2.0 ** (level / STEPS_PER_DOUBLING)
        chance = 1.0 if is_wanted else self.returns.likelihood(kind, self.now - used)
        return chance * scale * (1.0 + self.repeats.after(kind))

    def weigh(self, bucket: Bucket, used: int) -> tuple[float, int]:
        """Return what a unit of a bucket is worth, and the tick until which that holds.

        It holds no longer than the likelihoods do: see `Returns.version`.
        """
        age = max(self.now - used, 0)
        return self.worth(bucket, used), used + (1 << age.bit_length())

    def chance(self, node: Node) -> float:
        """Return the likelihood that a unit is wanted again, by what was seen alone."""
        if node.num_wanting:
            return 1.0
        return self.returns.seen(class_of(node), self.now - used_at(node))


def used_at(node: Node) -> int:
    """Return when a unit was last used: its checkpoint, or KV that needs none."""
    return node.slot_used if node.has_checkpoint else node.row_used


def last_used(node: Node) -> int:
    """Return the same in ticks of the cache, of a checkpoint that is to go first as well.

    How old a unit was when it was wanted again is learned from it: the order of eviction is not an
    age.
    """
    used = used_at(node)
    return used if used >= 0 else used - COLDEST


def class_of(node: Node) -> int:
    """Return the class of a unit: units of one class are taken to behave alike."""
    return class_number(node.kind, min(node.hits, MAX_HITS), node.generation)


def class_number(kind: int, hits: int, generation: int) -> int:
    """Return the number of a class; hits and generation are within their bounds."""
    return (kind * (MAX_HITS + 1) + hits) * (MAX_GENERATION + 1) + generation


def _next_classes() -> list[int]:
    """Return, of every class, the one that its units have come to once they were wanted again."""
    step = MAX_GENERATION + 1
    is_last = [number // step % (MAX_HITS + 1) == MAX_HITS for number in range(NUM_CLASSES)]
    return [number + (0 if last else step) for number, last in enumerate(is_last)]


def start_of(node: Node) -> int:
    """Return the depth from which a unit's savings count: that of the checkpoint above, or 0."""
    above = holder_above(node)
    return above.depth if above is not None else 0


def holder_above(node: Node) -> Node | None:
    """Return the nearest node above with a checkpoint, None where there is none."""
    above = node.parent
    while above is not None and not above.has_checkpoint:
        above = above.parent
    return above


def _level(saved: int, num_bytes: int) -> int:
    """Return the logarithm of savings per byte, in whole steps."""
    if saved <= 0:
        return _NOTHING_SAVED
    return math.floor(STEPS_PER_DOUBLING * math.log2(saved / num_bytes))
