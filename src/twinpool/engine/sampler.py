"""The sampler: from the logits of a step to one token per lane, with logprobs and stop strings.

Knows no queue and no model. The law that it keeps: what a lane gets depends on its own logits, its
parameters, its seed and the position of the token, and on nothing else: not on batch mates, their
order, a retraction or a restart.

    logits -> penalties, bias, min_tokens -> temperature -> top-k -> top-p -> min-p -> draw
        +-> log softmax -> logprobs (the model's raw distribution)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from twinpool.engine.choose import ScannedRows, choose, inverse_temperature
from twinpool.engine.draw import uniform
from twinpool.engine.logprobs import token_logprobs
from twinpool.engine.penalties import LogitAdjuster
from twinpool.engine.stopping import StopWatch
from twinpool.engine.vocab_scan import FloatArray, compile_scans, scan_blocks
from twinpool.kernels.batch import IntArray
from twinpool.scheduling.plan import Lane, LaneResult, TokenLogprobs
from twinpool.scheduling.sampling import SamplingParams

RowIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Task:
    """One lane on its way: where its logits lie and what is asked."""

    lane: Lane
    params: SamplingParams
    row: int


class Sampler:
    """Chooses tokens; keeps penalty counts and open text per request until told to forget them.

    Args:
        eos_token_ids: The model's end tokens: masked while `min_tokens` is not reached.
        stop_watch: Looks for stop strings; None finds none.
    """

    def __init__(
        self, *, eos_token_ids: Sequence[int] = (), stop_watch: StopWatch | None = None
    ) -> None:
        self._adjuster = LogitAdjuster(tuple(eos_token_ids))
        self._stop_watch = stop_watch

    def warm_up(self) -> None:
        """Compile what requests will need, so that none of them waits for it."""
        compile_scans()

    def sample(self, logits: torch.Tensor, lanes: Sequence[Lane]) -> list[LaneResult]:
        """Choose one token per lane.

        Args:
            logits: float32 `[n, V]` on the CPU; read only.
            lanes: `n` lanes with sampling parameters.

        Returns:
            One result per lane, in order. A lane whose logits are not numbers, or that has no
            token left to choose from, gets an `error`; its neighbours go on.

        Changes:
            What is kept per request: penalty counts, open text.

        Cost:
            Greedy: one read of the logits. Else one more arithmetic pass over each row, plus
            sorting of those tokens only that a filter can let through.
        """
        raw = _matrix(logits)
        results: list[LaneResult | None] = [None] * len(lanes)
        plain: list[_Task] = []
        changed: list[_Task] = []
        for row, lane in enumerate(lanes):
            params = lane.sampling
            if params is None:
                raise ValueError(f"lane {row} of request {lane.request_id} does not sample")
            kind = changed if self._adjuster.has_work(lane, params) else plain
            kind.append(_Task(lane, params, row))
        self._sample_plain(raw, plain, results)
        if changed:
            self._sample_changed(raw, changed, results)
        return [result for result in results if result is not None]

    def prompt_logprobs(
        self, logits: torch.Tensor, targets: IntArray, num_top: int
    ) -> tuple[TokenLogprobs, ...]:
        """Return logprobs of given tokens under the model's raw distribution.

        Args:
            logits: float32 `[n, V]` on the CPU; read only.
            targets: int32 `[n]` tokens, in the vocabulary.
            num_top: How many of the most likely tokens come with each.

        Returns:
            One per row; NaN and no tokens for a row that holds no numbers.
        """
        scan = _scan_raw(_matrix(logits), np.arange(len(targets)))
        best = scan.best
        return tuple(
            token_logprobs(scan.row(index, float(best[index])), token, num_top)
            if np.isfinite(best[index])
            else TokenLogprobs(token, float("nan"))
            for index, token in enumerate(targets.tolist())
        )

    def forget(self, request_id: int) -> None:
        """Drop what is kept for a request; unknown ids are ignored."""
        self._adjuster.forget(request_id)
        if self._stop_watch is not None:
            self._stop_watch.forget(request_id)

    def _sample_plain(
        self, raw: FloatArray, tasks: list[_Task], results: list[LaneResult | None]
    ) -> None:
        rows = np.array([task.row for task in tasks], np.int64)
        self._sample_rows(raw, raw, rows, tasks, results)

    def _sample_changed(
        self, raw: FloatArray, tasks: list[_Task], results: list[LaneResult | None]
    ) -> None:
        work = raw[[task.row for task in tasks]]
        kept = []
        for index, task in enumerate(tasks):
            error = self._adjuster.adjust(work[index], task.lane, task.params)
            if error:
                results[task.row] = LaneResult(task.lane.request_id, None, error=error)
            else:
                kept.append(index)
        rows = np.array(kept, np.int64)
        self._sample_rows(raw, work, rows, [tasks[index] for index in kept], results)

    def _sample_rows(
        self,
        raw: FloatArray,
        logits: FloatArray,
        rows: RowIds,
        tasks: list[_Task],
        results: list[LaneResult | None],
    ) -> None:
        """Choose tokens of some tasks, whose logits are `rows` of `logits`."""
        inverse = np.array([inverse_temperature(task.params) for task in tasks], np.float64)
        maxima, sums = scan_blocks(logits, rows, inverse)
        sound = np.isfinite(maxima.max(axis=1)) if len(tasks) else np.empty(0, np.bool_)
        for index in np.flatnonzero(~sound):
            task = tasks[index]
            error = _what_is_wrong(logits[rows[index]])
            results[task.row] = LaneResult(task.lane.request_id, None, error=error)
        scan = ScannedRows(logits, rows[sound], maxima[sound], sums[sound])
        good = [task for task, is_sound in zip(tasks, sound, strict=True) if is_sound]
        uniforms = [uniform(task.params.seed, task.lane.output_index) for task in good]
        tokens = choose(scan, [task.params for task in good], uniforms).tolist()
        logprobs = self._logprobs(raw, good, tokens)
        for task, token in zip(good, tokens, strict=True):
            results[task.row] = LaneResult(
                task.lane.request_id,
                token,
                logprobs=logprobs.get(task.row),
                stop_string=self._stop_string(task, token),
            )

    def _logprobs(
        self, raw: FloatArray, tasks: list[_Task], tokens: list[int]
    ) -> dict[int, TokenLogprobs]:
        """Return logprobs by row, of the tasks that asked for them."""
        asked = [
            (task.row, token, task.params.logprobs)
            for task, token in zip(tasks, tokens, strict=True)
            if task.params.logprobs is not None
        ]
        if not asked:
            return {}
        scan = _scan_raw(raw, np.array([row for row, _, _ in asked], np.int64))
        best = scan.best
        return {
            row: token_logprobs(scan.row(index, float(best[index])), token, num_top)
            for index, (row, token, num_top) in enumerate(asked)
        }

    def _stop_string(self, task: _Task, token: int) -> str | None:
        if self._stop_watch is None or not task.params.stop_strings:
            return None
        # The text of an end token is no part of the answer.
        if token in self._adjuster.end_tokens(task.params):
            return None
        return self._stop_watch.check(task.lane, token)


def _matrix(logits: torch.Tensor) -> FloatArray:
    if logits.dtype != torch.float32 or logits.ndim != 2:
        raise ValueError(f"logits are {logits.dtype} {tuple(logits.shape)}, not float32 [n, V]")
    return np.ascontiguousarray(logits.detach().numpy())


def _scan_raw(raw: FloatArray, rows: RowIds) -> ScannedRows:
    return ScannedRows(raw, rows, *scan_blocks(raw, rows, np.ones(len(rows))))


def _what_is_wrong(row: FloatArray) -> str:
    num_bad = int(np.count_nonzero(np.isnan(row) | (row == np.inf)))
    if num_bad:
        return f"{num_bad} of {len(row)} logits are not finite numbers"
    return f"all {len(row)} tokens are ruled out, none is left to choose"
