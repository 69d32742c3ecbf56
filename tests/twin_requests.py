"""Requests over a prefix cache and its naive twin: they arrive, wait, start, go on and end in both.

Knows no Hypothesis; the tests that drive it choose operations at random, each in their own way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from twin_caches import Slots, TwinCaches
from twinpool.memory.naive import NaiveMatch
from twinpool.memory.naive_books import NaiveMark
from twinpool.memory.naive_prefixes import Prefix
from twinpool.memory.node import Node
from twinpool.memory.place import PlaceKind
from twinpool.memory.tree_records import Match
from twinpool.memory.value import start_of


@dataclass(eq=False)
class Waiting:
    """One waiting request, in both caches; it looks again where the tree has changed."""

    namespace: str
    tokens: tuple[int, ...]
    found: Match
    expected: NaiveMatch
    version: int
    # What it wants, where demand is heeded.
    wanted: tuple[Node, NaiveMark] | None = None


@dataclass(eq=False)
class User:
    """One running request, in both caches."""

    namespace: str
    tokens: tuple[int, ...]
    node: Node
    prefix: Prefix
    has_match: bool
    matched_node: Node
    matched_prefix: Prefix
    # How deep KV went when it started.
    branch: int
    # Where periodic checkpoints were left, in both.
    periodic: list[tuple[Node, Prefix]] = field(default_factory=list)


class TwinRequests:
    """Requests over both caches.

    Args:
        twins: The caches.
    """

    def __init__(self, twins: TwinCaches) -> None:
        self.twins = twins
        self.real, self.naive = twins.real, twins.naive
        self.users: list[User] = []
        self.waiting: list[Waiting] = []

    def arrive(self, namespace: str, tokens: tuple[int, ...]) -> Waiting:
        """Match, want what was found, and say so where demand is heeded."""
        waiting = Waiting(
            namespace, tokens, *self.twins.match(namespace, tokens), self.real.version
        )
        self.waiting.append(waiting)
        if self.real.demand.is_heeded:
            self._want(waiting)
            ids = np.array(tokens, dtype=np.int32)
            self.real.note_demand(namespace, ids, waiting.found)
            self.naive.note_demand(namespace, tokens, waiting.expected)
        return waiting

    def look(self, waiting: Waiting) -> None:
        """Match a waiting request again, if the tree has changed."""
        if waiting.version != self.real.version:
            waiting.found, waiting.expected = self.twins.match(waiting.namespace, waiting.tokens)
            waiting.version = self.real.version
            if self.real.demand.is_heeded:
                self._want(waiting)

    def touch(self, waiting: Waiting) -> None:
        """Keep what a waiting request would reuse recent."""
        self.look(waiting)
        self.real.touch(waiting.found)
        self.naive.touch(waiting.expected)

    def forget(self, waiting: Waiting) -> None:
        """Let a waiting request go: it has been admitted, or aborted."""
        self.waiting.remove(waiting)
        if waiting.wanted is not None:
            self.real.demand.unwant(waiting.wanted[0])
            self.naive.unwant(waiting.wanted[1])

    def admit(self, waiting: Waiting) -> User:
        """Lock what a waiting request matches."""
        self.look(waiting)
        found = waiting.found
        # Whoever is about to start looks ahead, which changes nothing.
        self.real.foresight.expected_loss(len(waiting.tokens), 2, spared=found.node)
        node, prefix = self.real.lock(found), self.naive.lock(waiting.expected)
        assert node.depth == found.depth == len(prefix[1])
        self.forget(waiting)
        user = User(
            waiting.namespace,
            waiting.tokens,
            node,
            prefix,
            has_match=node.has_checkpoint,
            matched_node=node,
            matched_prefix=prefix,
            branch=found.kv_depth,
        )
        self.users.append(user)
        return user

    def extend(
        self,
        user: User,
        more: tuple[int, ...],
        places: set[int],
        *,
        may_evict: bool,
        first_to_go: bool,
        kind: PlaceKind = PlaceKind.KV,
        generation: int = 0,
    ) -> None:
        """Compute what is missing, leave checkpoints where there are slots, insert all of it."""
        user.tokens += more
        start, page = user.node.depth, self.twins.page_size
        end = len(user.tokens) // page * page
        rows = self.twins.take_rows(end - start) if end > start else None
        if rows is None:
            return
        checkpoints: list[tuple[int, Slots]] = []
        if self.twins.needs_state:
            floored = {depth // page * page for depth in places} | {end}
            for depth in sorted(depth for depth in floored if start < depth <= end):
                slots = self.twins.take_slot(may_evict=False)
                if slots is None and may_evict:
                    above = checkpoints[-1][0] if checkpoints else None
                    slots = self._evict_for_slot(user, depth, above, kind, generation)
                if slots is not None:
                    checkpoints.append((depth, slots))
            if not checkpoints:
                self.twins.give_rows(rows)
                return
            end = checkpoints[-1][0]
            self.twins.give_rows(rows[end - start :])
            rows = rows[: end - start]
        self._insert(user, rows, checkpoints, end, first_to_go, kind, generation)

    def copy_match(self, user: User) -> None:
        """Let go of the matched checkpoint."""
        if user.has_match:
            user.has_match = False
            self.real.release_checkpoint(user.matched_node)
            self.naive.release_checkpoint(user.matched_prefix)

    def roll(self, user: User) -> None:
        """Drop the periodic checkpoints that a deeper one has replaced."""
        for node, prefix in user.periodic:
            assert self.real.drop_interior(node) == self.naive.drop_interior(prefix)
        user.periodic.clear()

    def claim(self, user: User) -> None:
        """Take the checkpoint at the end of a locked path out, as it is."""
        if user.node.has_checkpoint and not user.node.slot_locks:
            slots = (
                self.real.claim_checkpoint(user.node),
                self.naive.claim_checkpoint(user.prefix),
            )
            self.twins.spare_slots.append(slots)

    def end(self, user: User) -> None:
        """End a request."""
        self.copy_match(user)
        self.real.unlock(user.node)
        self.naive.unlock(user.prefix)
        self.users.remove(user)

    def check(self) -> None:
        """Compare both caches, and audit."""
        self.twins.check(
            locked=[user.node for user in self.users],
            locked_checkpoints=[user.matched_node for user in self.users if user.has_match],
            wanted=[waiting.wanted[0] for waiting in self.waiting if waiting.wanted],
        )

    def close(self) -> None:
        """End everything: whatever happened, all of both pools can be had back."""
        for waiting in list(self.waiting):
            self.forget(waiting)
        for user in list(self.users):
            self.end(user)
        while self.twins.spare_slots:
            self.twins.give_slot(self.twins.spare_slots.pop())
        while self.twins.spare_rows:
            self.twins.give_rows(self.twins.spare_rows.pop())
        self.check()
        self.twins.flush()
        self.check()
        assert self.real.rows.num_free == self.real.rows.capacity
        assert self.real.slots.num_free == self.real.slots.capacity
        assert not self.real.tree.roots

    def _want(self, waiting: Waiting) -> None:
        before, waiting.wanted = waiting.wanted, None
        if waiting.found.depth:
            node = waiting.found.node
            self.real.demand.want(node)
            waiting.wanted = (node, self.naive.want(waiting.expected))
        if before is not None:
            self.real.demand.unwant(before[0])
            self.naive.unwant(before[1])

    def _evict_for_slot(
        self, user: User, depth: int, above: int | None, kind: PlaceKind, generation: int
    ) -> Slots | None:
        """Take a slot if both find the checkpoint worth it."""
        node, ids = user.node, np.array(user.tokens[:depth], dtype=np.int32)
        real_above = above
        if real_above is None:
            real_above = node.depth if node.has_checkpoint else start_of(node)
        found = self.real.foresight.admit_checkpoint(
            user.namespace, node, ids, real_above, kind, generation
        )
        new = (user.namespace, user.tokens[:depth])
        kind_name = kind.name.lower()
        expected = self.naive.admit_checkpoint(user.prefix, new, above, kind_name, generation)
        assert found == expected
        return self.twins.take_slot(may_evict=True) if found else None

    def _insert(
        self,
        user: User,
        rows: np.ndarray,
        checkpoints: list[tuple[int, Slots]],
        end: int,
        first_to_go: bool,
        kind: PlaceKind,
        generation: int,
    ) -> None:
        start = user.node.depth
        for depth, row in enumerate(rows.tolist(), start=start + 1):
            self.twins.content[row] = (user.namespace, user.tokens[:depth])
        got = self.real.insert(
            user.namespace,
            user.node,
            np.array(user.tokens[:end], dtype=np.int32),
            np.concatenate([user.node.path_rows(), rows]),
            [(depth, slots[0]) for depth, slots in checkpoints],
            first_to_go=first_to_go,
            kinds={depth: kind for depth, _ in checkpoints},
            generation=generation,
        )
        expected = self.naive.insert(
            user.prefix,
            user.tokens[:end],
            [(depth, slots[1]) for depth, slots in checkpoints],
            first_to_go=first_to_go,
            kinds={depth: kind.name.lower() for depth, _ in checkpoints},
            generation=generation,
        )
        span = (got.duplicate_start, got.duplicate_end)
        assert span == (expected.duplicate_start, expected.duplicate_end)
        assert [node.depth for node in got.placed] == expected.placed
        self.twins.give_rows(rows[: span[1] - start])
        for slots in zip(got.surplus_slots, reversed(expected.surplus_slots), strict=True):
            self.twins.give_slot(slots)
        if first_to_go:
            user.periodic += [
                (node, (user.namespace, user.tokens[: node.depth])) for node in got.placed
            ]
        self.real.unlock(user.node)
        self.naive.unlock(user.prefix)
        user.node, user.prefix = got.node, expected.prefix
