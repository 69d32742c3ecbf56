"""Snapshot rules: what a slot strategy holds while a request runs, and where checkpoints may stand.

`direct` is twinpool's own: one slot, copies go straight into slots that the tree owns, at exact
depths. The others reproduce the engine that they come from, grids included, so that its deployments
can be planned and replayed. Knows no request and no pool.

Source: reference engine, its hybrid memory: slots per request, prefill and decode tracking grids.
vLLM, `MambaManager` with `--mamba-cache-mode align`: states at block borders alone, and of those
the last one of the prompt and the one where a shared prefix was seen to end. Marconi (MLSys 2025),
section 4.1: states at branch points and at the last decoded token, and none elsewhere.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from twinpool.errors import ConfigError
from twinpool.memory.running_cap import SlotStrategy, slots_per_request


class AnswerReserve(enum.StrEnum):
    """How much room for answers is kept when a request is admitted."""

    EXPECTED = "expected"
    WHOLE = "whole"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRules:
    """What a running request holds and leaves behind.

    Attributes:
        name: The flag's spelling, or `off`.
        slots_per_request: Slots reserved when the cap on running requests is computed.
        num_tracked: Private slots that a request takes at admission for decode snapshots.
        takes_second_slot: True when a snapshot goes to a free slot first, if there is one, and
            replaces the tracked one afterwards.
        has_exact_places: True for checkpoints at the depths that a prompt asks for, which are the
            fork that it makes and the following.
        at_prompt_end: With places, True for one at the deepest depth that a repeat can use.
        at_boundaries: With places, True for those that the arrival names, and at a prompt's end
            that falls on a page.
        heeds_others: With places, True when waiting requests ask a running prefill for one.
        copies_chunk_end: True when the state is copied at the end of every prefill chunk.
        donates_working: True when the working state itself becomes the checkpoint at the end.
        keeps_match_locked: True when a matched checkpoint stays locked while the request runs.
        prefill_grid: Snapshots in prefill stand at multiples of it, counted from the chunk's
            start; 0 for none.
        branch_grid: Forks are snapped to it.
        decode_grid: Snapshots in decode stand at multiples of it; 0 for none.
        reserve: What admission keeps for answers: a share learned as requests run, all that they
            may write, or nothing.
        is_reference: True for a strategy of the reference engine: what it is planned for also
            admits, orders and evicts as that engine does.
    """

    name: str
    slots_per_request: int
    num_tracked: int = 0
    takes_second_slot: bool = False
    has_exact_places: bool = False
    at_prompt_end: bool = False
    at_boundaries: bool = False
    heeds_others: bool = False
    copies_chunk_end: bool = False
    donates_working: bool = False
    keeps_match_locked: bool = False
    prefill_grid: int = 0
    branch_grid: int = 1
    decode_grid: int = 0
    reserve: AnswerReserve = AnswerReserve.EXPECTED
    is_reference: bool = False

    def grid_snapshot(self, start: int, end: int, branch: int) -> int | None:
        """Return the depth of the one snapshot that a prefill chunk gives on a grid, or None.

        Args:
            start: Depth at which the chunk begins.
            end: Depth at which it ends.
            branch: Depth at which KV was matched and state was not, or 0.
        """
        if not self.prefill_grid or end - start < self.prefill_grid:
            return None
        on_grid = branch // self.prefill_grid * self.prefill_grid
        if start < on_grid < end and (on_grid - start) % self.branch_grid == 0:
            return on_grid
        return start + (end - start) // self.prefill_grid * self.prefill_grid


def snapshot_rules(
    strategy: SlotStrategy | str,
    *,
    has_overlap: bool = True,
    is_cache_enabled: bool = True,
    page_size: int = 1,
    track_interval: int = 256,
    chunk_grid: int = 64,
) -> SnapshotRules:
    """Return the rules of a strategy, with its grids.

    Args:
        strategy: The strategy or its name.
        has_overlap: Whether the engine that is modelled schedules ahead of the device.
        is_cache_enabled: False gives the strategy `off`, whatever the name.
        page_size: Rows of a page.
        track_interval: Tokens between snapshots in decode.
        chunk_grid: Chunk length of the model's scan kernel, in tokens.

    Raises:
        ConfigError: If the name is unknown, or the strategy cannot run with these settings.
    """
    # Neither of them leaves anything in decode.
    is_silent = strategy in (SlotStrategy.ALIGN, SlotStrategy.MARCONI)
    if track_interval < 1 or (track_interval % page_size and not is_silent):
        raise ConfigError(
            f"track interval {track_interval} is not a positive multiple of the page size "
            f"{page_size}",
            hint="change --mamba-track-interval or --page-size",
        )
    is_no_buffer = strategy == SlotStrategy.NO_BUFFER
    num_slots = slots_per_request(
        strategy, overlap=has_overlap or is_no_buffer, prefix_cache=is_cache_enabled
    )
    if not is_cache_enabled:
        return SnapshotRules(name="off", slots_per_request=num_slots)
    known = SlotStrategy(strategy)
    if known is SlotStrategy.DIRECT:
        # The end of a request seldom falls on a page: then the last page boundary is tracked.
        return _direct(num_slots, track_interval if page_size == 1 else page_size)
    if is_silent:
        return _at_places(known, num_slots)
    if is_no_buffer:
        _require_single_rows(page_size)
        return _copied(num_slots)
    return _buffered(
        known,
        num_slots,
        has_overlap=has_overlap,
        chunk_grid=chunk_grid,
        grid=math.lcm(chunk_grid, page_size),
        track_interval=track_interval,
    )


def _direct(num_slots: int, decode_grid: int) -> SnapshotRules:
    """Return twinpool's own rules: every place that a prompt asks for, and the end."""
    return SnapshotRules(
        name=SlotStrategy.DIRECT.value,
        slots_per_request=num_slots,
        has_exact_places=True,
        at_prompt_end=True,
        at_boundaries=True,
        heeds_others=True,
        donates_working=True,
        decode_grid=decode_grid,
    )


def _at_places(strategy: SlotStrategy, num_slots: int) -> SnapshotRules:
    """Return the rules of `align` and `marconi`: forks, and one end or the other."""
    is_aligned = strategy is SlotStrategy.ALIGN
    return SnapshotRules(
        name=strategy.value,
        slots_per_request=num_slots,
        has_exact_places=True,
        at_prompt_end=is_aligned,
        donates_working=not is_aligned,
        reserve=AnswerReserve.NOTHING if is_aligned else AnswerReserve.EXPECTED,
    )


def _copied(num_slots: int) -> SnapshotRules:
    """Return the rules of `no_buffer`: a copy at the end of every chunk, and the state itself."""
    return SnapshotRules(
        name=SlotStrategy.NO_BUFFER.value,
        slots_per_request=num_slots,
        copies_chunk_end=True,
        donates_working=True,
        keeps_match_locked=True,
        reserve=AnswerReserve.WHOLE,
        is_reference=True,
    )


def _buffered(
    strategy: SlotStrategy,
    num_slots: int,
    *,
    has_overlap: bool,
    chunk_grid: int,
    grid: int,
    track_interval: int,
) -> SnapshotRules:
    """Return the rules of `extra_buffer` and its lazy kin: snapshots on grids, in own slots."""
    is_lazy = strategy is SlotStrategy.EXTRA_BUFFER_LAZY
    return SnapshotRules(
        name=strategy.value,
        slots_per_request=num_slots,
        num_tracked=1 if is_lazy or not has_overlap else 2,
        takes_second_slot=is_lazy,
        keeps_match_locked=True,
        prefill_grid=grid,
        branch_grid=chunk_grid,
        decode_grid=math.lcm(grid, track_interval),
        reserve=AnswerReserve.WHOLE,
        is_reference=True,
    )


def _require_single_rows(page_size: int) -> None:
    if page_size != 1:
        raise ConfigError(
            f"no_buffer needs page size 1, not {page_size}",
            hint="use --page-size 1, or extra_buffer",
        )
