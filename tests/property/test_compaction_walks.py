"""Rows move under running requests, and nobody notices: contents are those of the tokens."""

from __future__ import annotations

import json
import random

import pytest

from simulation import make_rig
from twinpool.memory.arena import Arena
from twinpool.scheduling.plan import MoveRows, StepPlan, StepResult


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", range(6))
def test_a_crowded_arena_moves_rows_of_all_kinds(seed: int, page_size: int) -> None:
    rnd = random.Random(seed)
    rig = make_rig(
        policy="value",
        order="least-work",
        arena=Arena(rnd.choice([14, 20]), 24, page_size),
        chunk_tokens=64,
        page_size=page_size,
    )
    stems = [[rnd.randrange(1000) for _ in range(rnd.choice([10, 40]))] for _ in range(4)]
    first_rows: list[int] = []
    execute = rig.executor.execute

    def noting(plan: StepPlan) -> StepResult:
        first_rows[:] = [int(lane.rows[lane.start]) for lane in plan.lanes]
        return execute(plan)

    rig.executor.execute = noting
    moved_own = moved_read = 0
    for _ in range(400):
        if rnd.random() < 0.5 and rig.scheduler.num_waiting < 12:
            stem = rnd.choice(stems)
            tail = [rnd.randrange(1000) for _ in range(rnd.randrange(1, 60))]
            rig.add([*stem, *tail], max_tokens=rnd.choice([2, 20, 60]))
        before = {id_: rows_of(rig, id_) for id_ in rig.scheduler.running_ids}
        plan = rig.step(deep=True)
        if plan is None:
            continue
        moves = [each for each in plan.actions if isinstance(each, MoveRows)]
        line = json.loads(rig.lines[-1])
        assert line.get("move", []) == [[len(each.sources)] for each in moves]
        assert [lane[4] for lane in line["lanes"]] == first_rows
        sources = {row for each in moves for row in each.sources}
        for own, read in before.values():
            moved_own += len(sources & own)
            moved_read += len(sources & read)
    rig.run(deep=True)
    assert moved_own
    assert moved_read
    assert rig.scheduler.flush()


def rows_of(rig, request_id: int) -> tuple[set[int], set[int]]:
    """Return the rows of a running request: its own, and the tree's that it reads."""
    request = rig.scheduler._roster.running[request_id]
    return set(request.own_rows.tolist()), set(request.rows[: request.tree_depth].tolist())
