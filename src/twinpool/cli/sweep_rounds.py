"""The rounds of a sweep: coarse splits first, then finer ones where it is best.

Makes cells, has them run, and puts the document together; knows no layout for people.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from twinpool.cli.model_argument import read_model
from twinpool.cli.sweep_cells import (
    Cell,
    Job,
    plan_cell,
    prepared_cell,
    run_cells,
    says_memory,
)
from twinpool.cli.sweep_flags import replayed_flags
from twinpool.errors import CapacityError, ConfigError
from twinpool.replay.sweep import (
    COARSE_CELLS,
    Point,
    Recommendation,
    best_of,
    cliffs,
    coarse_slots,
    finer_slots,
    recommend,
)
from twinpool.settings.memory import MemoryMode
from twinpool.settings.size_plan import SizePlan

Progress = Callable[[int, int], None]
Names = tuple[str, ...]
# The split of an engine whose states and KV share one memory: there is none.
UNSPLIT = 0
# Slots that one request may reserve: with so many some split can run, if any can.
_MOST_PER_REQUEST = 16


@dataclass(frozen=True, slots=True)
class Group:
    """Policies that are tried at every split.

    Attributes:
        changes: Options by name; empty: as the flags have it.
    """

    changes: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """What tells the group from others; empty when there is only one."""
        return ", ".join(value for _, value in self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAsk:
    """What a sweep is to try.

    Attributes:
        groups: Policies.
        slots: Splits by slots; empty with empty `ratios`: they are chosen.
        ratios: Splits by ratio, as text.
        num_cells: Splits of the first round where they are chosen.
        num_rounds: Rounds after it.
        processes: Replays at once.
        executor: `process` or `ray`.
        with_bound: True to work out the upper bound for the best split.
    """

    groups: tuple[Group, ...]
    slots: tuple[int, ...] = ()
    ratios: Names = ()
    num_cells: int = COARSE_CELLS
    num_rounds: int = 2
    processes: int = 1
    executor: str = "process"
    with_bound: bool = False


def groups_of(*, engines: Names, strategies: Names, orders: Names, evictions: Names) -> list[Group]:
    """Combine policies, every one with every other.

    Args:
        engines: Engines whose policies hold where nothing else is said; empty: as the flags have
            it.
        strategies: Slot strategies; empty: as the flags have it.
        orders: Queue orders; likewise.
        evictions: Eviction policies; likewise.
    """
    axes = [
        [(name, value) for value in values]
        for name, values in (
            ("engine", engines),
            ("mamba_radix_cache_strategy", strategies),
            ("schedule_policy", orders),
            ("radix_eviction_policy", evictions),
        )
        if values
    ]
    return [Group(tuple(combination)) for combination in product(*axes)]


def run_sweep(job: Job, ask: SweepAsk, *, progress: Progress) -> dict[str, Any]:
    """Run a sweep.

    Args:
        job: Trace, model and options.
        ask: What to try.
        progress: Called with replays done and planned.

    Returns:
        The document that text, JSON and page are made of.

    Raises:
        TwinpoolError: If the options are wrong, the trace cannot be read, or nothing can run.
    """
    return _Sweep(job, ask, progress).run()


class _Sweep:
    """Cells that have been run, by group and split."""

    def __init__(self, job: Job, ask: SweepAsk, progress: Progress) -> None:
        self._ask = ask
        self._job = job
        self._progress = progress
        self._num_done = self._num_planned = 0
        self._rows: dict[tuple[Group, int], dict[str, Any]] = {}
        self._plans = {group: self._plan(group) for group in ask.groups}
        self._split = [group for group in ask.groups if not _is_unsplit(self._plans[group])]
        plan = self._plans[ask.groups[0]]
        if not plan.pools.geometry.slot_bytes or not plan.pools.geometry.row_bytes:
            raise ConfigError(
                f"{plan.request.spec.model_type} has no two pools, so there is no split to sweep",
                hint="use twinpool replay",
            )
        if not self._split:
            raise ConfigError(
                "states and KV share one memory in all that is asked for",
                hint="sweep an engine with a split as well, such as sglang or twinpool-static",
            )

    def run(self) -> dict[str, Any]:
        """Run all rounds and build the document."""
        ask = self._ask
        self._run({group: self._first_round(group) for group in ask.groups})
        for _ in range(0 if ask.slots or ask.ratios else ask.num_rounds):
            self._run({group: finer_slots(self._points(group)) for group in self._split})
        if not any(row["error"] is None for row in self._rows.values()):
            first = next(iter(self._rows.values()))
            raise CapacityError(f"no split can run: {first['error']}")
        return self._document()

    def _first_round(self, group: Group) -> list[int]:
        ask, plan = self._ask, self._plans[group]
        if _is_unsplit(plan):
            return [UNSPLIT]
        if ask.slots or ask.ratios:
            by_ratio = [self._slots_at(group, ratio) for ratio in ask.ratios]
            return sorted({*ask.slots, *by_ratio})
        sizes = plan.pools.sizes
        page = sizes.geometry.row_bytes * sizes.page_size
        most = (sizes.rest_bytes - page) // sizes.geometry.slot_bytes - 1
        chosen = coarse_slots(sizes.slots_per_request, most, ask.num_cells)
        # The split that the flags give is what the others are measured against.
        return sorted({*chosen, sizes.state_slots})

    def _slots_at(self, group: Group, ratio: str) -> int:
        changes = dict(group.changes) | {
            "mamba_full_memory_ratio": ratio,
            "max_mamba_cache_size": None,
        }
        return self._sized(changes).pools.sizes.state_slots

    def _plan(self, group: Group) -> SizePlan:
        """Size the split that the flags give; where none can run with it, one that can."""
        try:
            return self._sized(dict(group.changes))
        except CapacityError as error:
            for slots in range(1, _MOST_PER_REQUEST + 1):
                with contextlib.suppress(CapacityError):
                    return self._sized(dict(_cell(group, slots).changes))
            raise error

    def _sized(self, changes: dict[str, Any]) -> SizePlan:
        return plan_cell(read_model(self._job.model), {**self._job.options, **changes})

    def _run(self, wanted: dict[Group, list[int]]) -> None:
        todo = [
            (group, slots)
            for group, all_slots in wanted.items()
            for slots in all_slots
            if (group, slots) not in self._rows
        ]
        if not todo:
            return
        self._num_planned += len(todo)
        results = self._execute([_cell(group, slots) for group, slots in todo])
        for key, result in zip(todo, results, strict=True):
            self._rows[key] = result

    def _execute(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        def done() -> None:
            self._num_done += 1
            self._progress(self._num_done, max(self._num_planned, self._num_done))

        return run_cells(
            self._job,
            cells,
            processes=self._ask.processes,
            executor=self._ask.executor,
            done=done,
        )

    def _points(self, group: Group) -> list[Point]:
        return [
            Point(
                state_slots=slots,
                hit_rate=row["hit_rate"],
                output_tokens_per_s=row["output_tokens_per_s"],
            )
            for (other, slots), row in sorted(self._rows.items(), key=lambda item: item[0][1])
            if other == group and row["error"] is None
        ]

    def _document(self) -> dict[str, Any]:
        keys = sorted(self._rows, key=lambda key: (self._ask.groups.index(key[0]), key[1]))
        cells = [self._row(*key) for key in keys]
        # What is recommended is a split, so it comes from an engine that has one.
        runnable = [group for group in self._split if self._points(group)]
        if not runnable:
            raise CapacityError("no split can run", hint="see --json for the reason of each")
        winner = max(runnable, key=lambda g: best_of(self._points(g)).output_tokens_per_s)
        best = (winner, best_of(self._points(winner)).state_slots)
        found = recommend(self._points(winner))
        first = self._split[0]
        base = (first, self._plans[first].pools.sizes.state_slots)
        baseline = keys.index(base) if base in self._rows else None
        if baseline is not None and cells[baseline]["error"] is not None:
            baseline = None
        sample = next(row for row in self._rows.values() if row["error"] is None)
        return {
            "trace": sample["trace"],
            "format": sample["format"],
            "model": sample["model"],
            "loop": sample["loop"],
            "duration_s": sample["duration_s"],
            "memory_after_weights": sample["pools"]["memory_after_weights"],
            "reusable_rate": self._rows[best]["reusable_rate"],
            "cells": cells,
            "best": keys.index(best),
            "baseline": baseline,
            "cliffs": self._cliffs(keys),
            "recommended": self._recommended(winner, found),
            "bound": self._bound(best),
            "runs": self._runs(keys, best, baseline),
            "cost": sample["cost"],
            "notes": [*sample["notes"], *self._notes()],
        }

    def _notes(self) -> list[str]:
        """Say of what a sweep assumed of the memory how to compare it."""
        options = self._job.options
        if all(says_memory({**options, **dict(group.changes)}) for group in self._ask.groups):
            return []
        return [
            "memory is static: what is swept is a split; --engines twinpool-static,twinpool holds "
            "elastic memory, which needs none, against it"
        ]

    def _row(self, group: Group, slots: int) -> dict[str, Any]:
        row = self._rows[group, slots]
        if row["error"] is not None:
            return {
                "label": group.label,
                "engine": dict(group.changes).get("engine", ""),
                "state_slots": slots or None,
                "error": row["error"],
            }
        pools, policies = row["pools"], row["policies"]
        sizes = self._plans[group].pools.sizes
        state = (slots + 1) * sizes.geometry.slot_bytes
        ratio = state / max(pools["memory_after_weights"] - state, 1)
        return {
            "label": group.label,
            "engine": dict(group.changes).get("engine", ""),
            "ratio": ratio if slots else None,
            "state_slots": slots or None,
            "kv_tokens": pools["kv_tokens"],
            "max_running_requests": pools["max_running_requests"],
            "slots_per_request": pools["slots_per_request"],
            "strategy": policies["mamba_radix_cache_strategy"],
            "eviction": policies["radix_eviction_policy"],
            "order": policies["schedule_policy"],
            "memory": policies["memory_mode"],
            "error": None,
            **{name: row[name] for name in _COPIED},
        }

    def _cliffs(self, keys: list[tuple[Group, int]]) -> list[dict[str, Any]]:
        return [
            {
                "engine": group.label,
                "side": cliff.side,
                "from": keys.index((group, cliff.from_slots)),
                "to": keys.index((group, cliff.to_slots)),
                "hit_rate_from": cliff.hit_rate_from,
                "hit_rate_to": cliff.hit_rate_to,
            }
            for group in self._split
            for cliff in cliffs(self._points(group))
        ]

    def _recommended(self, group: Group, found: Recommendation) -> dict[str, Any]:
        plan = self._sized(dict(_cell(group, found.state_slots).changes))
        sizes = plan.pools.sizes
        state = (found.state_slots + 1) * sizes.geometry.slot_bytes
        found_flags = replayed_flags(plan)
        return {
            "state_slots": found.state_slots,
            "kv_tokens": sizes.kv_tokens,
            "ratio": state / max(sizes.rest_bytes - state, 1),
            "why": found.why,
            "margin": f"{found.low:,} to {found.high:,} slots",
            "policies": dict(group.changes) | _policies(plan),
            "flags": {paste.engine: paste.flags for paste in found_flags},
            "flag_notes": {paste.engine: paste.note for paste in found_flags if paste.note},
        }

    def _runs(
        self, keys: list[tuple[Group, int]], best: tuple[Group, int], baseline: int | None
    ) -> dict[str, Any]:
        """Run best and baseline once more, with samples over time."""
        wanted = [best] if baseline is None else [best, keys[baseline]]
        cells = [
            dataclasses.replace(
                _cell(*key), is_sampled=True, expected_s=self._rows[key]["duration_s"]
            )
            for key in wanted
        ]
        self._num_planned += len(cells)
        runs = [
            {"cell": keys.index(key), "timeline": row["timeline"], "by_turn": row["by_turn"]}
            for key, row in zip(wanted, self._execute(cells), strict=True)
        ]
        return {"best": runs[0], "baseline": runs[1] if len(runs) > 1 else None}

    def _bound(self, best: tuple[Group, int]) -> dict[str, Any] | None:
        if not self._ask.with_bound:
            return None
        from twinpool.cli.replay_bound import bound_document

        return bound_document(prepared_cell(self._job, _cell(*best)))


def _cell(group: Group, slots: int) -> Cell:
    if slots == UNSPLIT:
        return Cell(group.changes)
    pinned = (("max_mamba_cache_size", str(slots)), ("mamba_full_memory_ratio", None))
    return Cell((*group.changes, *pinned))


def _policies(plan: SizePlan) -> dict[str, str]:
    """Name what was replayed, by setting; the memory of a split is static."""
    memory, scheduling = plan.resolved.memory, plan.resolved.scheduling
    return {
        "mamba_radix_cache_strategy": memory.mamba_radix_cache_strategy.value,
        "radix_eviction_policy": memory.radix_eviction_policy,
        "schedule_policy": scheduling.schedule_policy,
    }


def _is_unsplit(plan: SizePlan) -> bool:
    return plan.resolved.memory.memory_mode is not MemoryMode.STATIC


_COPIED = (
    "hit_rate",
    "output_tokens_per_s",
    "ttft_s",
    "wait_s",
    "tpot_s",
    "state_missed_tokens",
    "regretted_tokens",
    "prompt_tokens",
    "requests",
    "refused",
    "unfinished",
)
