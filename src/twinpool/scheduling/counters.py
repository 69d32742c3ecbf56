"""Counters of the scheduler since start, and the snapshot made of them and of both pools.

Counts what it is told; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.scheduling.events import FinishReason, PoolSnapshot, Snapshot


@dataclass(slots=True)
class Counters:
    """Counts since start; see `Snapshot` for their meaning."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    state_missed_tokens: int = 0
    retractions: int = 0
    longest_wait_s: float = 0.0
    finished: dict[str, int] = field(
        default_factory=lambda: {reason.value: 0 for reason in FinishReason}
    )

    def finish(self, reason: FinishReason) -> None:
        """Count the end of a request."""
        self.finished[reason.value] += 1

    def mean_output(self, prior: float) -> float:
        """Return the tokens that a request gets, from all that ran so far.

        Args:
            prior: What is assumed before, as one request.
        """
        return (self.output_tokens + prior) / (sum(self.finished.values()) + 1)

    def note_wait(self, seconds: float) -> None:
        """Count how long a request had to wait for its first admission."""
        self.longest_wait_s = max(self.longest_wait_s, seconds)

    def snapshot(
        self,
        cache: PrefixCache,
        *,
        working_rows: int,
        working_slots: int,
        num_running: int,
        num_waiting: int,
        max_running_requests: int,
        num_steps: int,
        skipped_checkpoints: int,
        waiting_s: float,
    ) -> Snapshot:
        """Freeze everything into one record."""
        return Snapshot(
            kv=PoolSnapshot(
                capacity=cache.rows.capacity,
                free=cache.rows.num_free,
                working=working_rows,
                cached=cache.tree.num_rows,
                evictable=cache.room.evictable_rows,
                evictions={
                    str(reason): count for reason, count in cache.evictor.evicted_rows.items()
                },
            ),
            state=PoolSnapshot(
                capacity=cache.slots.capacity,
                free=cache.slots.num_free,
                working=working_slots,
                cached=cache.tree.num_checkpoints,
                evictable=cache.room.evictable_slots,
                evictions={
                    str(reason): count for reason, count in cache.evictor.evicted_slots.items()
                },
            ),
            num_running=num_running,
            num_waiting=num_waiting,
            max_running_requests=max_running_requests,
            num_steps=num_steps,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.computed_tokens,
            output_tokens=self.output_tokens,
            state_missed_tokens=self.state_missed_tokens,
            retractions=self.retractions,
            skipped_checkpoints=skipped_checkpoints,
            thrashed_tokens=cache.evictor.thrashed_tokens,
            moved_rows=0 if cache.room.compaction is None else cache.room.compaction.moved_rows,
            longest_wait_s=max(self.longest_wait_s, waiting_s),
            finished=dict(self.finished),
        )
