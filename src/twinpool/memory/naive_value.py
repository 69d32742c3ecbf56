"""The naive twin's units by value: what each saves per byte, times how often it will be wanted.

Everything is worked out anew for every question, in whole numbers and fractions. Savings per byte
count in steps of the square root of 2, so squares are compared: returns ** 2 * 2 ** level. Knows
the books and the learner.
"""

from __future__ import annotations

from fractions import Fraction

from twinpool.memory.naive_books import NaiveBooks
from twinpool.memory.naive_gains import Work, gain_of, saved_operations
from twinpool.memory.naive_learner import MAX_HITS, Kind, NaiveLearner
from twinpool.memory.naive_order import COLDEST, Key
from twinpool.memory.naive_prefixes import Prefix, depth_of

MAX_GENERATION = 3
FINISH = "finish"
# So many times as much must what goes be worth that nothing is evicted for a new checkpoint.
CERTAINTY = 8


class NaiveValue:
    """The order of eviction by value, and what follows from an eviction.

    Args:
        books: What there is.
        work: What prefixes cost.

    Attributes:
        thrashed_tokens: Prompt tokens computed again since start that eviction took.
        thrashed_work: The operations that they cost.
    """

    def __init__(self, books: NaiveBooks, work: Work) -> None:
        self._books = books
        self._work = work
        self._learner = NaiveLearner()
        self.thrashed_tokens = 0
        self.thrashed_work = 0

    def key(self, prefix: Prefix) -> Key:
        """Return the worth of a unit, squared; of equals the longest unused goes."""
        return (self.worth(prefix), self._books.used(prefix))

    def worth(self, prefix: Prefix) -> Fraction:
        """Return the square of what a unit is worth per byte."""
        chance, kind = Fraction(1), self._kind(prefix)
        if not self._books.mark(prefix).num_wanting:
            age = self._books.now - self._books.used(prefix)
            chance = self._learner.likelihood(kind, age)
        returns = chance * (1 + self._learner.further(kind))
        return _worth(returns, *gain_of(self._books, self._work, prefix))

    def note_prompt(self, prompt: Prefix, found: Prefix) -> None:
        """Learn from a prompt: of the unit that it would have reused, or of the one it finds.

        Args:
            prompt: All of it.
            found: The end of the unit that it finds, or the root.
        """
        depth = depth_of(found)
        ghost = self._learner.find(prompt, depth)
        if ghost is not None:
            self._learner.note_return(ghost.kind, self._books.now - ghost.used)
            self.thrashed_tokens += ghost.depth - depth
            self.thrashed_work += saved_operations(self._work, depth, ghost.depth)
        elif depth:
            end = self._books.segment_end(found)
            age = self._books.now - _tick(self._books.used(end))
            self._learner.note_return(self._kind(end), age)

    def note_eviction(self, prefix: Prefix) -> None:
        """Remember a unit that is about to go; its session falls back to the checkpoint above.

        Nobody returns to a finish as a rule, and so nobody falls back from it.
        """
        books = self._books
        kind, used = self._kind(prefix), books.used(prefix)
        self._learner.remember(prefix, kind, _tick(used), len(books.checkpoints))
        if prefix in books.checkpoints and books.mark(prefix).kind != FINISH:
            self._fall_back(books.holder_above(prefix), used)

    def admits(
        self,
        start: Prefix,
        new: Prefix,
        above: int | None,
        kind: str,
        generation: int,
        least: Fraction | None,
    ) -> bool:
        """Decide whether a checkpoint is worth the unit that would go for it.

        Args:
            start: What its request has locked.
            new: Its prefix.
            above: Depth of the checkpoint before it; None: it is cached.
            kind: Why it would be left.
            generation: Turns of its session that were cached before.
            least: What the unit is worth that would go, squared; None where nothing can.

        Returns:
            False where it is not; then it is remembered as one that has gone.
        """
        books, (_, _, row_bytes, slot_bytes) = self._books, self._work
        holder = start if start in books.checkpoints else books.holder_above(start)
        if above is None:
            above = depth_of(holder) if holder is not None else 0
        end, unit = depth_of(new), (kind, 0, min(generation, MAX_GENERATION))
        saved = saved_operations(self._work, above, end)
        returns = self._learner.likelihood(unit, 0) * (1 + self._learner.further(unit))
        worth = _worth(returns, saved, slot_bytes + row_bytes * (end - above))
        if least is not None and least <= CERTAINTY**2 * worth:
            return True
        self._learner.remember(new, unit, books.now, len(books.checkpoints))
        self._fall_back(holder, books.now)
        return False

    def _kind(self, prefix: Prefix) -> Kind:
        mark = self._books.mark(prefix)
        return (mark.kind, min(mark.hits, MAX_HITS), min(mark.generation, MAX_GENERATION))

    def _fall_back(self, above: Prefix | None, used: int) -> None:
        """Take the checkpoint above for one that its session has not continued, and as recent."""
        if above is None or self._books.mark(above).hits > 1:
            return
        self._books.mark(above).hits = 0
        self._books.checkpoints[above] = max(self._books.checkpoints[above], used)


def _tick(used: int) -> int:
    """Return when a unit was used, of one that is the coldest of all as well."""
    return used if used >= 0 else used - COLDEST


def _worth(returns: Fraction, saved: int, num_bytes: int) -> Fraction:
    """Return the square of returns times savings per byte, these rounded down to their step."""
    square = Fraction(saved, num_bytes) ** 2
    level = 0
    while Fraction(2) ** (level + 1) <= square:
        level += 1
    while Fraction(2) ** level > square:
        level -= 1
    return returns**2 * Fraction(2) ** level
