"""Cells of a sweep: one replay each, run in processes that have read the trace once.

What goes to a process and comes back are plain dictionaries. Knows no table and no report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from twinpool.cli.model_argument import NamedModel, read_model
from twinpool.cli.replay_json import replay_document
from twinpool.cli.replay_setup import READ_OPTIONS, Prepared, assemble, load_trace, plan_replay
from twinpool.errors import ConfigError, TwinpoolError
from twinpool.replay.run import run_replay
from twinpool.settings.size_plan import SizePlan
from twinpool.traces.schema import Trace

SAMPLES = 240


@dataclass(frozen=True, slots=True)
class Job:
    """What all cells of a sweep share.

    Attributes:
        trace_path: File or folder of the trace.
        model: A config, a folder or a catalog name.
        options: Click's values by option name.
    """

    trace_path: str
    model: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay of a sweep.

    Attributes:
        changes: Options that differ from the job's, by name.
        is_sampled: True to take samples over time.
        expected_s: Virtual time that the replay takes, for samples; None: not known.
    """

    changes: tuple[tuple[str, Any], ...]
    is_sampled: bool = False
    expected_s: float | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """The changes by name."""
        return MappingProxyType(dict(self.changes))


def run_cell(job: Job, cell: Cell) -> dict[str, Any]:
    """Run one replay.

    Args:
        job: What all cells share.
        cell: What this one changes.

    Returns:
        The replay's document; with `error` alone set when this split cannot run.
    """
    try:
        prepared = prepared_cell(job, cell)
        setup = prepared.setup
        if cell.is_sampled:
            setup = dataclasses.replace(
                setup, samples=SAMPLES, with_sessions=True, expected_s=cell.expected_s
            )
        return {"error": None, **replay_document(prepared, run_replay(setup))}
    except TwinpoolError as error:
        return {"error": error.message}


def prepared_cell(job: Job, cell: Cell) -> Prepared:
    """Size the pools of a cell and put its replay together; the trace is read once per process.

    Raises:
        TwinpoolError: If this cell cannot run.
    """
    options = {**job.options, **cell.options}
    named = read_model(job.model)
    read = tuple((name, options[name]) for name in READ_OPTIONS)
    trace = _trace(job.trace_path, read)
    return assemble(named, plan_cell(named, options), trace, options)


def says_memory(options: Mapping[str, Any]) -> bool:
    """True when a flag or an engine says how rows and states share the memory."""
    return options["memory_mode"] is not None or options["engine"] is not None


def plan_cell(named: NamedModel, options: dict[str, Any]) -> SizePlan:
    """Size the pools of a cell: two of them where nothing is said, as splits are what is swept.

    Args:
        named: The model.
        options: Click's values by option name, with the cell's changes.

    Raises:
        ConfigError: If options do not go together.
        CapacityError: If a pool would be empty or no request could run.
    """
    return plan_replay(named, options, is_split=not says_memory(options))


@cache
def _trace(trace_path: str, options: tuple[tuple[str, Any], ...]) -> Trace:
    return load_trace(trace_path, dict(options))


def run_cells(
    job: Job,
    cells: Sequence[Cell],
    *,
    processes: int,
    executor: str,
    done: Callable[[], None],
) -> list[dict[str, Any]]:
    """Run cells, side by side where there are processes for it.

    Args:
        job: What all cells share.
        cells: The replays.
        processes: How many run at once; 1 runs them here.
        executor: `process`, or `ray` for a Ray cluster.
        done: Called after each.

    Returns:
        Documents in the order of `cells`.

    Raises:
        ConfigError: If Ray is asked for and not installed.
    """
    if executor == "ray":
        return _with_ray(job, cells, done)
    if processes == 1 or len(cells) < 2:
        return list(_here(job, cells, done))
    # Fresh processes: what this one has imported and opened is not theirs.
    context = multiprocessing.get_context("spawn")
    results: list[dict[str, Any]] = [{} for _ in cells]
    workers = min(processes, len(cells))
    with ProcessPoolExecutor(max_workers=workers, mp_context=context) as pool:
        pending = {pool.submit(run_cell, job, cell): at for at, cell in enumerate(cells)}
        for future in as_completed(pending):
            results[pending[future]] = future.result()
            done()
    return results


def _here(job: Job, cells: Sequence[Cell], done: Callable[[], None]) -> Iterator[dict[str, Any]]:
    for cell in cells:
        yield run_cell(job, cell)
        done()


def _with_ray(job: Job, cells: Sequence[Cell], done: Callable[[], None]) -> list[dict[str, Any]]:
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ConfigError(
            "--executor ray needs Ray, which is not installed",
            hint="pip install ray, or leave --executor out",
        ) from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="WARNING")
    remote = ray.remote(_run_in)
    folder = os.getcwd()
    results: list[dict[str, Any]] = [{} for _ in cells]
    pending = {remote.remote(folder, job, cell): at for at, cell in enumerate(cells)}
    while pending:
        for task in ray.wait(list(pending))[0]:
            results[pending.pop(task)] = ray.get(task)
            done()
    return results


def _run_in(folder: str, job: Job, cell: Cell) -> dict[str, Any]:
    """Run a cell where relative paths mean what they do here: Ray's workers begin elsewhere."""
    with contextlib.chdir(folder) if os.path.isdir(folder) else contextlib.nullcontext():
        return run_cell(job, cell)


def default_processes() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0))
