"""The document of a sweep, as frozen values that the page is drawn from.

Reads what is there and says which field is not; knows no layout and no chart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twinpool.errors import ConfigError

# Latencies of a cell, and the figures of each, in the order in which they are shown.
SPREADS = ("ttft_s", "wait_s", "tpot_s")
FIGURES = ("mean", "p50", "p90", "p99", "max")
# Parts of a pool from the bottom up: what is held for sure, what may go, what nobody owns.
POOL_PARTS = ("working", "locked", "evictable", "free")
# Memory in which both kinds share one budget: a number of slots is no split there.
SHARED_MEMORY = frozenset({"elastic", "equal-pages", "one-budget"})
# What memory may hold of a session, from most to least.
RESIDENCIES = ("running", "both", "kv only", "state only", "cold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One replay of the sweep.

    Attributes:
        index: Place in the sweep.
        label: Name for people.
        policy: Engine, strategy, eviction, order and memory mode, by these names.
        counts: Whole numbers and ratio by field name; None where the cell has none.
        hit_rate: Cached prompt tokens by prompt tokens; None for a failed cell.
        tokens_per_s: Output tokens per second; None for a failed cell.
        spreads: Seconds by latency and figure.
        error: Why the cell failed; empty if it did not.
    """

    index: int
    label: str
    policy: Mapping[str, str]
    counts: Mapping[str, float | None]
    hit_rate: float | None
    tokens_per_s: float | None
    spreads: Mapping[str, Mapping[str, float | None]]
    error: str

    @property
    def engine(self) -> str:
        """The engine whose policies were replayed."""
        return self.policy["engine"]

    @property
    def slots(self) -> int:
        """State slots of the split; 0 for memory without a state pool, or without a split."""
        if self.policy["memory"] in SHARED_MEMORY:
            return 0
        return int(self.counts["state_slots"] or 0)

    @property
    def kv_tokens(self) -> int:
        """KV tokens; 0 where the cell names none."""
        return int(self.counts["kv_tokens"] or 0)

    @property
    def is_shown(self) -> bool:
        """True if the cell has both figures that charts show."""
        return not self.error and self.hit_rate is not None and self.tokens_per_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """Where the hit rate falls within one step of the split.

    Attributes:
        engine: Whose curve.
        side: `kv`: too little KV is left; `state`: too few slots.
        start: The cell before the fall.
        end: The cell after it.
        hit_rate_from: Hit rate before the fall.
        hit_rate_to: Hit rate after it.
    """

    engine: str
    side: str
    start: Cell
    end: Cell
    hit_rate_from: float | None
    hit_rate_to: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A sample of a run.

    Attributes:
        time_s: Virtual seconds.
        pools: Parts of each pool, by pool (`kv`, `state`) and part; a pool that is not there is
            left out.
        running: Running requests.
        waiting: Requests in the queue.
        sessions: What is left of each session, by name.
    """

    time_s: float
    pools: Mapping[str, Mapping[str, float]]
    running: int
    waiting: int
    sessions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Requests of a group of turns.

    Attributes:
        first: First turn, from 0.
        last: Last turn; None for all further ones.
        requests: How many.
        hit_rate: Of their prompt tokens.
    """

    first: int
    last: int | None
    requests: int
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A cell that was watched over time.

    Attributes:
        name: `best` or `baseline`.
        cell: Which cell.
        moments: Samples by rising time.
        turns: Hits by turn.
    """

    name: str
    cell: Cell
    moments: tuple[Moment, ...]
    turns: tuple[Turns, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep and what it says.

    Attributes:
        facts: Trace, format, model, loop, duration and bytes, by field name.
        cells: All cells in their order.
        best: The cell that the recommendation rests on; None if all failed.
        baseline: The cell that it is compared with.
        cliffs: Where the hit rate falls.
        recommended: Split, reasons and flags; empty if there is nothing to recommend.
        bound: Hit rate that no policy passes, and the kind of the bound; None if not worked out.
        reusable_rate: Hit rate of a cache without limits.
        runs: Cells that were watched; `best` comes first.
        cost: Terms of the step cost: value, source, reason.
        notes: Remarks.
    """

    facts: Mapping[str, Any]
    cells: tuple[Cell, ...]
    best: Cell | None
    baseline: Cell | None
    cliffs: tuple[Cliff, ...]
    recommended: Mapping[str, Any]
    bound: tuple[float, str] | None
    reusable_rate: float | None
    runs: tuple[Run, ...]
    cost: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]


def read_sweep(document: Mapping[str, Any]) -> Sweep:
    """Read the JSON document of a sweep.

    Args:
        document: As `twinpool sweep --json` writes it; read only.

    Raises:
        ConfigError: If a field is missing, or points to a cell that is not there.
    """
    try:
        return _sweep(document)
    except KeyError as error:
        raise ConfigError(
            f"the sweep's document has no field {error}",
            hint="write it again with `twinpool sweep --json` of this version",
        ) from error


def number(value: object) -> float | None:
    """Take a number as it is; None for what is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def _sweep(document: Mapping[str, Any]) -> Sweep:
    cells = tuple(_cell(index, entry) for index, entry in enumerate(document["cells"]))
    bound, runs = document["bound"], document["runs"]
    rate = None if bound is None else number(bound["hit_rate"])
    return Sweep(
        facts={
            name: document[name]
            for name in (
                "trace",
                "format",
                "model",
                "loop",
                "duration_s",
                "memory_after_weights",
            )
        },
        cells=cells,
        best=_pointed(cells, document["best"], "best"),
        baseline=_pointed(cells, document["baseline"], "baseline"),
        cliffs=tuple(_cliff(cells, entry) for entry in document["cliffs"]),
        recommended=document["recommended"] or {},
        bound=None if rate is None else (rate, str(bound["kind"])),
        reusable_rate=number(document["reusable_rate"]),
        runs=tuple(
            _run(cells, name, runs[name]) for name in ("best", "baseline") if runs.get(name)
        ),
        cost=document["cost"],
        notes=tuple(str(note) for note in document["notes"]),
    )


def _cell(index: int, entry: Mapping[str, Any]) -> Cell:
    policy = ("engine", "strategy", "eviction", "order", "memory")
    counts = (
        "ratio",
        "state_slots",
        "kv_tokens",
        "max_running_requests",
        "slots_per_request",
        "state_missed_tokens",
        "regretted_tokens",
        "prompt_tokens",
        "requests",
        "refused",
        "unfinished",
    )
    spreads = {name: entry[name] or {} for name in SPREADS}
    policies = [str(entry[name]) for name in ("order", "eviction", "strategy") if entry[name]]
    return Cell(
        index=index,
        # Where all cells have the same policies none has a label, and a sentence needs a name.
        label=str(entry["label"]) or ", ".join(policies) or "as the flags have it",
        policy={name: "" if entry[name] is None else str(entry[name]) for name in policy},
        counts={name: number(entry[name]) for name in counts},
        hit_rate=number(entry["hit_rate"]),
        tokens_per_s=number(entry["output_tokens_per_s"]),
        spreads={
            name: {figure: number(spread.get(figure)) for figure in FIGURES}
            for name, spread in spreads.items()
        },
        error=str(entry["error"] or ""),
    )


def _pointed(cells: Sequence[Cell], index: int | None, field: str) -> Cell | None:
    if index is None:
        return None
    if not 0 <= index < len(cells):
        raise ConfigError(
            f"the sweep's document names cell {index} as {field}; it has {len(cells)} cells",
            hint="cells are counted from 0",
        )
    return cells[index]


def _there(cells: Sequence[Cell], index: int, field: str) -> Cell:
    cell = _pointed(cells, index, field)
    if cell is None:
        raise ConfigError(f"the sweep's document has no cell for {field}")
    return cell


def _cliff(cells: Sequence[Cell], entry: Mapping[str, Any]) -> Cliff:
    return Cliff(
        engine=str(entry["engine"]),
        side=str(entry["side"]),
        start=_there(cells, entry["from"], "a cliff's start"),
        end=_there(cells, entry["to"], "a cliff's end"),
        hit_rate_from=number(entry["hit_rate_from"]),
        hit_rate_to=number(entry["hit_rate_to"]),
    )


def _run(cells: Sequence[Cell], name: str, entry: Mapping[str, Any]) -> Run:
    return Run(
        name=name,
        cell=_there(cells, entry["cell"], f"the {name} run"),
        moments=tuple(_moment(sample) for sample in entry["timeline"]),
        turns=tuple(
            Turns(
                first=group["first"],
                last=group["last"],
                requests=group["requests"],
                hit_rate=group["hit_rate"],
            )
            for group in entry["by_turn"]
        ),
    )


def _moment(sample: Mapping[str, Any]) -> Moment:
    # A residency may come as a member of an enumeration of strings.
    sessions = {name: str(value) for name, value in sample["sessions"].items()}
    unknown = set(sessions.values()).difference(RESIDENCIES)
    if unknown:
        raise ConfigError(
            f"the sweep's document has a session that is {min(unknown)!r}",
            hint=f"a session is one of: {', '.join(RESIDENCIES)}",
        )
    return Moment(
        time_s=sample["time_s"],
        pools={
            pool: {part: sample[pool][part] for part in POOL_PARTS}
            for pool in ("kv", "state")
            if sample[pool] is not None
        },
        running=sample["num_running"],
        waiting=sample["num_waiting"],
        sessions=sessions,
    )
