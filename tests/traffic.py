"""Requests for a rig, and what is expected of each: outputs that follow from the history alone.

Knows no randomness; the tests that use it choose what arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulation import Rig, next_token
from twinpool.errors import CapacityError
from twinpool.scheduling.events import FinishReason


@dataclass
class Traffic:
    """Sends requests, and checks in the end that each got what its history says."""

    rig: Rig
    prompts: dict[int, list[int]] = field(default_factory=dict)
    wanted: dict[int, int] = field(default_factory=dict)
    failing: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    num_refused: int = 0

    def __post_init__(self) -> None:
        self.rig.executor.errors = lambda number: "fault" if number in self.failing else ""

    def arrive(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        boundaries: Sequence[int] = (),
        namespace: str = "",
        fails: bool = False,
    ) -> None:
        """Send one; refused is what can never fit, and nothing else."""
        try:
            number = self.rig.add(
                prompt, max_tokens, boundaries=tuple(sorted(boundaries)), namespace=namespace
            )
        except CapacityError:
            page = self.rig.scheduler.cache.page_size
            rows = -(-(len(prompt) + max_tokens - 1) // page) * page
            assert rows > self.rig.scheduler.cache.rows.capacity
            self.num_refused += 1
            return
        self.prompts[number] = list(prompt)
        self.wanted[number] = max_tokens
        if fails:
            self.failing.add(number)

    @property
    def live(self) -> list[int]:
        """Requests that have neither ended nor been aborted."""
        gone = self.rig.ended.keys() | self.aborted
        return [number for number in self.prompts if number not in gone]

    def history(self, number: int) -> list[int]:
        """Prompt and what has been sampled so far."""
        return self.prompts[number] + self.rig.outputs[number]

    def abort(self, number: int) -> None:
        """Abort a live request."""
        assert self.rig.scheduler.abort(number)
        assert not self.rig.scheduler.abort(number)
        self.aborted.add(number)
        self.rig.scheduler.audit()

    def flush(self) -> None:
        """Drop what is cached and not in use."""
        self.rig.scheduler.flush()
        self.rig.scheduler.audit()

    def step(self, num_steps: int) -> None:
        """Run some steps, with all checks."""
        for _ in range(num_steps):
            if self.rig.scheduler.has_work:
                self.rig.step(deep=True)

    def expected(self, number: int) -> list[int]:
        """Return the output that the history alone leads to."""
        history = list(self.prompts[number])
        for _ in range(self.wanted[number]):
            history.append(next_token(np.array(history), number))
        return history[len(self.prompts[number]) :]

    def close(self) -> None:
        """Run to the end: everything ended, as it should, and nothing is held."""
        rig = self.rig
        rig.run(max_steps=20_000, deep=True)
        for number in self.prompts:
            if number in self.aborted:
                assert number not in rig.ended
                continue
            end = rig.ended[number]
            if number in self.failing:
                assert (end.finish_reason, end.error) == (FinishReason.ERROR, "fault")
                continue
            assert end.finish_reason is FinishReason.LENGTH
            assert rig.outputs[number] == self.expected(number)
            assert 0 <= rig.cached[number] < len(self.prompts[number])
        snapshot = rig.scheduler.snapshot()
        assert snapshot.num_running == snapshot.num_waiting == 0
        for pool in (snapshot.kv, snapshot.state):
            assert pool.working == 0
            assert pool.evictable == pool.cached
        arena = rig.scheduler.cache.arena
        if arena is None:
            for pool in (snapshot.kv, snapshot.state):
                assert pool.free + pool.cached == pool.capacity
        else:
            used = snapshot.kv.cached + snapshot.state.cached * arena.rows_per_slot
            assert snapshot.kv.free + used == snapshot.kv.capacity
        assert rig.scheduler.flush()
        rig.scheduler.audit()
        assert not rig.scheduler.cache.tree.roots
        snapshot = rig.scheduler.snapshot()
        assert snapshot.kv.free == snapshot.kv.capacity
        assert snapshot.state.free == snapshot.state.capacity
