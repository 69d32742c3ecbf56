"""What the scheduler is built from, in units of one token and of many."""

from __future__ import annotations

import pytest

from twinpool.scheduling.decision_log import DecisionLog
from twinpool.settings.pools import ArenaPlan
from twinpool.settings.resolve import resolve
from twinpool.settings.wiring import PoolCounts, build_scheduler


@pytest.mark.parametrize("arena", [None, ArenaPlan(num_frames=10, rows_per_slot=6400)])
@pytest.mark.parametrize(("unit_tokens", "taken"), [(1, 16), (4, 4), (16, 3), (64, 3), (512, 3)])
def test_a_run_is_of_tokens_however_many_a_row_stands_for(arena, unit_tokens, taken):
    counts = PoolCounts(
        num_rows=64_000,
        num_slots=10,
        max_running_requests=4,
        context_length=10_000,
        arena=arena,
    )
    scheduler = build_scheduler(resolve({}), counts, DecisionLog(), unit_tokens=unit_tokens)
    assert len(scheduler.cache.room.take_rows(3)) == taken
