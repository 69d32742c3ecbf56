"""The prefix cache and the scheduler alone: match, insert, evict, and planning a decode step.

No model runs. Each figure is the best of several rounds, so that busy neighbours disturb it little;
the naive twin is timed in the same run, on prompts that it can bear.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from twinpool.memory.eviction import eviction_policy
from twinpool.memory.naive import NaivePrefixCache
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import snapshot_rules
from twinpool.memory.tree_records import nothing_matched
from twinpool.memory.work import NEUTRAL
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.limits import Limits
from twinpool.scheduling.order import queue_order
from twinpool.scheduling.plan import LaneResult, StepPlan, StepResult
from twinpool.scheduling.sampling import SamplingParams
from twinpool.scheduling.scheduler import Scheduler
from twinpool.scheduling.work_clock import WorkClock

NAIVE_TOKENS = 100
ROUNDS = 7


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Measure, print a table and return the figures.

    Args:
        argv: Nothing is understood yet.

    Returns:
        Microseconds by name of the operation.
    """
    figures: dict[str, float] = {}
    for num_tokens in (10_000, 100_000):
        for name, seconds in _cache_times(num_tokens).items():
            figures[f"{name} {num_tokens}"] = seconds * 1e6
    real, naive = _cache_times(NAIVE_TOKENS), _naive_times(NAIVE_TOKENS)
    for name in naive:
        figures[f"{name} {NAIVE_TOKENS}"] = real[name] * 1e6
        figures[f"naive {name} {NAIVE_TOKENS}"] = naive[name] * 1e6
    figures["schedule + commit, 32 decodes"] = _decode_step_time(32, 1024) * 1e6
    figures["the same with a decision log"] = _decode_step_time(32, 1024, is_logged=True) * 1e6
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}} {value:10.1f} us {1e6 / value:12,.0f} /s")
    for name in naive:
        print(f"naive / tree, {name}: {naive[name] / real[name]:.0f}x")
    return figures


def _cache_times(num_tokens: int) -> dict[str, float]:
    """Time the verbs on prompts of a length, over a cache that holds a few of them."""
    sessions = 8
    cache = PrefixCache(
        num_rows=(sessions + 2) * (num_tokens + 64),
        num_slots=64,
        policy=eviction_policy("joint-lru"),
    )
    prompts = _prompts(num_tokens)
    for _ in range(sessions):
        _insert(cache, next(prompts))
    known = next(prompts)
    _insert(cache, known)
    match = _best(lambda: cache.match("", known), 20)

    def insert_new() -> None:
        _insert(cache, next(prompts), times)

    times: list[float] = []
    for _ in range(40):
        insert_new()
    both: list[float] = []
    turn = known
    for _ in range(40):
        turn = np.concatenate([turn[: num_tokens - 100], next(prompts)[:100]])
        _match_and_insert(cache, turn, both)
    evict: list[float] = []
    for _ in range(20):
        _fill(cache, prompts)
        began = time.perf_counter()
        rows = cache.room.take_rows(num_tokens)
        evict.append(time.perf_counter() - began)
        cache.rows.free(rows)
    return {
        "match": match,
        "insert": min(times),
        "match + insert": min(both),
        "evict": min(evict),
    }


def _insert(
    cache: PrefixCache, prompt: np.ndarray[Any, Any], times: list[float] | None = None
) -> None:
    """Insert a prompt that nobody knows, with a checkpoint at its end."""
    rows = cache.room.take_rows(len(prompt))
    slot = cache.room.take_slot()
    root = nothing_matched().node
    began = time.perf_counter()
    inserted = cache.insert("", root, prompt, rows, [(len(prompt), slot)])
    if times is not None:
        times.append(time.perf_counter() - began)
    cache.rows.free(rows[len(prompt) :].copy())
    cache.unlock(inserted.node)


def _match_and_insert(cache: PrefixCache, turn: np.ndarray[Any, Any], times: list[float]) -> None:
    """Do what a next turn does: match and lock, then insert what is new."""
    slot = cache.room.take_slot()
    new = cache.room.take_rows(len(turn))
    began = time.perf_counter()
    match = cache.match("", turn)
    node = cache.lock(match)
    rows = np.concatenate([node.path_rows(), new[: len(turn) - match.depth]])
    inserted = cache.insert("", node, turn, rows, [(len(turn), slot)])
    cache.release_checkpoint(node)
    cache.unlock(node)
    times.append(time.perf_counter() - began)
    start, end = inserted.duplicate_start, inserted.duplicate_end
    cache.rows.free(rows[start:end].copy())
    cache.rows.free(new[len(turn) - match.depth :].copy())
    for surplus in inserted.surplus_slots:
        cache.slots.free(surplus)
    cache.unlock(inserted.node)


def _fill(cache: PrefixCache, prompts: Iterator[np.ndarray[Any, Any]]) -> None:
    """Insert until less than one prompt is free."""
    prompt = next(prompts)
    while cache.rows.num_free >= len(prompt):
        _insert(cache, prompt)
        prompt = next(prompts)


def _naive_times(num_tokens: int) -> dict[str, float]:
    cache = NaivePrefixCache(num_rows=10 * num_tokens, num_slots=64, policy="joint-lru")
    prompts = _prompts(num_tokens)

    def insert() -> None:
        cache.take_rows(num_tokens)
        slot = cache.take_slot()
        prompt = next(prompts).tolist()
        began = time.perf_counter()
        inserted = cache.insert(("", ()), prompt, [(num_tokens, slot)])
        times.append(time.perf_counter() - began)
        cache.unlock(inserted.prefix)

    times: list[float] = []
    for _ in range(8):
        insert()
    known = next(prompts).tolist()
    match = _best(lambda: cache.match("", known), 1)
    while cache.books.num_free_rows >= num_tokens:
        insert()
    began = time.perf_counter()
    cache.take_rows(num_tokens)
    evict = time.perf_counter() - began
    return {"match": match, "insert": min(times), "evict": evict}


def _decode_step_time(num_requests: int, context: int, *, is_logged: bool = False) -> float:
    """Time `schedule` and `commit` of steps in which every request decodes."""
    cache = PrefixCache(
        num_rows=num_requests * (context + 2048),
        num_slots=4 * num_requests,
        policy=eviction_policy("joint-lru"),
    )
    lines: list[bytes] = []
    clock = WorkClock(NEUTRAL)
    scheduler = Scheduler(
        cache=cache,
        rules=snapshot_rules("direct"),
        order=queue_order("fcfs", clock),
        clock=clock,
        limits=Limits(max_running_requests=num_requests, chunk_tokens=8192, context_length=1 << 20),
        log=_log(lines) if is_logged else None,
    )
    prompts = _prompts(context)
    for number in range(num_requests):
        sampling = SamplingParams(max_tokens=1024, temperature=0.0)
        scheduler.add(Arrival(request_id=number, prompt=next(prompts), sampling=sampling))
    times: list[float] = []
    for _ in range(400):
        began = time.perf_counter()
        plan = scheduler.schedule(0.0)
        planned = time.perf_counter() - began
        assert plan is not None
        result = _answer(plan)
        began = time.perf_counter()
        scheduler.commit(result, 0.0)
        if len(plan.lanes) == num_requests and all(lane.end > context for lane in plan.lanes):
            times.append(planned + time.perf_counter() - began)
    # Sums over windows of 16 steps, so that each holds its share of row runs.
    windows = [times[first : first + 16] for first in range(0, len(times) - 16, 16)]
    return min(sum(window) / len(window) for window in windows)


def _log(lines: list[bytes]) -> Any:
    from twinpool.scheduling.decision_log import DecisionLog

    return DecisionLog(lines.append)


def _answer(plan: StepPlan) -> StepResult:
    lanes = [
        LaneResult(lane.request_id, None if lane.sampling is None else 7) for lane in plan.lanes
    ]
    return StepResult(plan.step, tuple(lanes), duration_s=0.0)


def _prompts(num_tokens: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield prompts that share nothing."""
    rng = np.random.default_rng(0)
    while True:
        yield rng.integers(0, 2**31 - 1, num_tokens, dtype=np.int32)


def _best(operation: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(repeats):
            operation()
        best = min(best, (time.perf_counter() - began) / repeats)
    return best


if __name__ == "__main__":
    main()
