"""The arena against sets and poisoned bytes: whoever holds a row or a slot finds its pattern."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from twinpool.errors import OutOfRows, OutOfSlots
from twinpool.memory.allocator import RUN_ROWS
from twinpool.memory.arena import UNNAMED, Arena

POISON = 0xFF
NUM_PATTERNS = 250
# Which of hundreds of rows come back is one draw, or examples outgrow what Hypothesis keeps.
SEEDS = st.integers(0, 2**32)


class ArenaMachine(RuleBasedStateMachine):
    """Groups of rows and slots; frames, owners and bytes are kept by a plain twin.

    A group is what one allocation gave: a running request's rows, until `own` gives them a number.
    """

    n = 1
    page = 1

    @initialize(
        num_frames=st.sampled_from([6, 9, 3, 2, 1, 0]),
        left=st.sampled_from([0.05, 0.2, 0.5, 0.8, None]),
        seed=SEEDS,
    )
    def build(self, num_frames, left, seed) -> None:
        """Begin with nothing, or as sessions that fill the arena leave it: with holes."""
        random = Random(seed)
        self.num_frames = num_frames
        self.arena = Arena(num_frames, self.n, self.page)
        self.free = set(range(self.n, (num_frames + 1) * self.n))
        self.memory = np.full((num_frames + 1) * self.n, POISON, np.uint8)
        self.groups: dict[int, list[int]] = {}
        self.owner_of: dict[int, int] = {}
        self.slots: dict[int, int] = {}
        self.count = 0
        while left is not None and self.free:
            asked = random.randint(1, len(self.free))
            self.take(min(asked, 3 * self.n))
            self.set_owner(self.count, self.count)
        if self.groups:
            self.give_back([page for page in self.pages() if random.random() > left])

    @rule(share=st.sampled_from([0.3, 0.6, 0.1, 0.02, 1.0]), runs=st.integers(0, 3))
    def allocate_rows(self, share, runs) -> None:
        """Take rows; most become a node's at once."""
        asked = max(1, int(share * len(self.free)))
        free_frames = self.free_frames()
        if -(-asked // self.page) * self.page > len(self.free):
            with pytest.raises(OutOfRows):
                self.arena.rows.allocate(asked)
            return
        inside = len(self.free) - len(free_frames) * self.n
        opened = {row // self.n for row in self.take(asked)} & free_frames
        assert len(opened) <= -(-max(0, asked - inside) // self.n)
        if runs:
            self.set_owner(self.count, self.count)

    @precondition(lambda self: self.groups)
    @rule(share=st.sampled_from([0.3, 0.9, 0.05]), seed=SEEDS)
    def free_rows(self, share, seed) -> None:
        """Give back pages of several groups in any order."""
        pages = self.pages()
        # Large shares make frames that are nearly empty, small ones frames that are nearly full.
        self.give_back(Random(seed).sample(pages, int(share * len(pages))))

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def free_group(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        self.give_back([(name, row) for row in self.groups[name][:: self.page]])

    @rule()
    def allocate_slot(self) -> None:
        free_frames = self.free_frames()
        if not free_frames:
            with pytest.raises(OutOfSlots):
                self.arena.slots.allocate()
            return
        slot = self.arena.slots.allocate()
        assert slot in free_frames
        self.free -= set(self.frame(slot))
        self.slots[slot] = self.pattern()
        self.memory[self.frame(slot)] = self.slots[slot]

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def free_slot(self, data) -> None:
        slot = data.draw(st.sampled_from(sorted(self.slots)))
        self.arena.slots.free(slot)
        del self.slots[slot]
        self.free |= set(self.frame(slot))
        self.memory[self.frame(slot)] = POISON

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), runs=st.booleans())
    def own(self, data, runs) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        self.set_owner(name, UNNAMED if runs else name)

    @precondition(lambda self: self.groups)
    @rule(max_rows=st.sampled_from([400, 40, 8, 3]), locked=st.integers(0, 7))
    def compact(self, max_rows, locked) -> None:
        def is_movable(owner: int) -> bool:
            assert owner != UNNAMED
            return owner % 8 != locked

        while self.compact_once(is_movable, max_rows):
            self.every_holder_finds_its_pattern()
            self.books_agree()

    def compact_once(self, is_movable, max_rows) -> bool:
        before = self.free_frames()
        movable = self.movable_frames(max_rows, is_movable)
        moves = self.arena.compact(is_movable, max_rows)
        # A twin that looks at every frame; there are fewer than the arena looks at.
        assert (moves is None) == (not movable)
        if moves is None:
            return False
        frame = int(moves.sources[0]) // self.n
        sources, targets = moves.sources.tolist(), moves.targets.tolist()
        assert len(sources) == min(movable.values()) == movable[frame]
        assert set(sources) == self.rows_in_use(frame)
        assert set(targets) <= self.free
        assert len(set(targets)) == len(targets) == len(sources)
        assert not {row // self.n for row in targets} & (before | {frame} | set(self.slots))
        owner_of_row = {row: name for name, rows in self.groups.items() for row in rows}
        assert moves.owners.tolist() == [self.owner_of[owner_of_row[row]] for row in sources]
        for first in range(0, len(sources), self.page):
            offsets = range(self.page)
            assert sources[first : first + self.page] == [sources[first] + i for i in offsets]
            assert targets[first : first + self.page] == [targets[first] + i for i in offsets]
        self.memory[moves.targets] = self.memory[moves.sources]
        self.memory[moves.sources] = POISON
        became = dict(zip(sources, targets, strict=True))
        for name, rows in self.groups.items():
            self.groups[name] = [became.get(row, row) for row in rows]
        self.free = (self.free | set(sources)) - set(targets)
        assert self.free_frames() == before | {frame}
        return True

    def teardown(self) -> None:
        """Move whatever moves, so that no example ends without compaction."""
        if hasattr(self, "arena"):
            for name in self.groups:
                self.set_owner(name, name)
            while self.compact_once(lambda owner: True, 400):
                self.every_holder_finds_its_pattern()
                self.books_agree()

    @invariant()
    def every_holder_finds_its_pattern(self) -> None:
        if not hasattr(self, "arena"):
            return
        for name, rows in self.groups.items():
            assert (self.memory[rows] == name % NUM_PATTERNS).all()
        for slot, pattern in self.slots.items():
            assert (self.memory[self.frame(slot)] == pattern).all()
        assert (self.memory[sorted(self.free)] == POISON).all()

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "arena"):
            return
        arena = self.arena
        held = [row for rows in self.groups.values() for row in rows]
        assert len(set(held)) == len(held)
        assert arena.rows.num_free + len(held) + self.n * len(self.slots) == arena.rows.capacity
        assert arena.rows.num_free == len(self.free)
        assert set(np.flatnonzero(arena.rows.free_mask()).tolist()) == self.free
        assert len(arena.rows.free_mask()) == self.n + arena.rows.capacity
        free_frames = self.free_frames()
        assert arena.slots.num_free == len(free_frames)
        assert set(np.flatnonzero(arena.slots.free_mask()).tolist()) == free_frames
        owners = {row: self.owner_of[name] for name, rows in self.groups.items() for row in rows}
        for frame in range(self.num_frames + 1):
            rows, found = arena.owners(frame)
            assert rows.tolist() == sorted(self.rows_in_use(frame))
            assert found.tolist() == [owners[row] for row in rows.tolist()]

    def frame(self, number: int) -> list[int]:
        return list(range(number * self.n, (number + 1) * self.n))

    def free_frames(self) -> set[int]:
        frames = range(1, self.num_frames + 1)
        return {frame for frame in frames if set(self.frame(frame)) <= self.free}

    def rows_in_use(self, frame: int) -> set[int]:
        return {row for rows in self.groups.values() for row in rows if row // self.n == frame}

    def movable_frames(self, max_rows, is_movable) -> dict[int, int]:
        """Return how many rows each frame has that could be emptied, looking at all of them."""
        found = {}
        of_rows = set(range(1, self.num_frames + 1)) - self.free_frames() - set(self.slots)
        for frame in of_rows:
            used = self.rows_in_use(frame)
            owners = {self.owner_of[name] for name, rows in self.groups.items() if used & set(rows)}
            room = sum(row // self.n in of_rows - {frame} for row in self.free)
            if (
                len(used) <= max_rows
                and len(used) <= room
                and all(owner != UNNAMED and is_movable(owner) for owner in owners)
            ):
                found[frame] = len(used)
        return found

    def pattern(self) -> int:
        self.count += 1
        return self.count % NUM_PATTERNS

    def take(self, asked: int) -> list[int]:
        """Allocate rows into a new group, whose number is `count` then."""
        rows: list[int] = self.arena.rows.allocate(asked).tolist()
        assert len(set(rows)) == len(rows)
        assert set(rows) <= self.free
        assert asked <= len(rows) < asked + max(RUN_ROWS, self.page)
        self.free -= set(rows)
        self.count += 1
        self.groups[self.count] = rows
        self.owner_of[self.count] = UNNAMED
        self.memory[rows] = self.count % NUM_PATTERNS
        return rows

    def set_owner(self, name: int, owner: int) -> None:
        self.owner_of[name] = owner
        self.arena.own(np.array(self.groups[name], np.int32), owner)

    def pages(self) -> list[tuple[int, int]]:
        """Return group and first row of every page in use."""
        return [(name, row) for name, rows in self.groups.items() for row in rows[:: self.page]]

    def give_back(self, pages: list[tuple[int, int]]) -> None:
        rows = [first + offset for _, first in pages for offset in range(self.page)]
        self.arena.rows.free(np.array(rows, dtype=np.int32))
        self.memory[rows] = POISON
        self.free |= set(rows)
        for name in {name for name, _ in pages}:
            self.groups[name] = [row for row in self.groups[name] if row not in set(rows)]
            if not self.groups[name]:
                del self.groups[name], self.owner_of[name]


# A shape each: drawn ones would crowd each other out.
SHAPES = [(1, 1), (3, 1), (16, 1), (40, 1), (4, 4), (36, 4), (6, 3)]


@pytest.mark.parametrize(("n", "page"), SHAPES)
def test_rows_and_slots_keep_what_is_written_to_them(n, page) -> None:
    machine = type("Machine", (ArenaMachine,), {"n": n, "page": page})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=20, deadline=None)
    )
