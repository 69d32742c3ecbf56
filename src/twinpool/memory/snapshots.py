"""Snapshot rules: what a slot strategy holds while a request runs, and where checkpoints may stand.

`direct` is twinpool's own: one slot, copies go straight into slots that the tree owns, at exact
depths. The others reproduce the engine that they come from, grids included, so that its deployments
can be planned and replayed. Knows no request and no pool.

Source: reference engine, its hybrid memory: slots per request, prefill and decode tracking grids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from twinpool.errors import ConfigError
from twinpool.memory.running_cap import SlotStrategy, slots_per_request


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRules:
    """What a running request holds and leaves behind.

    Attributes:
        name: The flag's spelling, or `off`.
        slots_per_request: Slots reserved when the cap on running requests is computed.
        num_tracked: Private slots that a request takes at admission for decode snapshots.
        takes_second_slot: True when a snapshot goes to a free slot first, if there is one, and
            replaces the tracked one afterwards.
        has_exact_places: True for checkpoints at the exact depths that a prompt asks for.
        copies_chunk_end: True when the state is copied at the end of every prefill chunk.
        donates_working: True when the working state itself becomes the checkpoint at the end.
        keeps_match_locked: True when a matched checkpoint stays locked while the request runs.
        prefill_grid: Snapshots in prefill stand at multiples of it, counted from the chunk's
            start; 0 for none.
        branch_grid: Forks are snapped to it.
        decode_grid: Snapshots in decode stand at multiples of it; 0 for none.
    """

    name: str
    slots_per_request: int
    num_tracked: int = 0
    takes_second_slot: bool = False
    has_exact_places: bool = False
    copies_chunk_end: bool = False
    donates_working: bool = False
    keeps_match_locked: bool = False
    prefill_grid: int = 0
    branch_grid: int = 1
    decode_grid: int = 0

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
    if track_interval < 1 or track_interval % page_size:
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
    name = str(SlotStrategy(strategy))
    if strategy == SlotStrategy.DIRECT:
        return SnapshotRules(
            name=name,
            slots_per_request=num_slots,
            has_exact_places=True,
            donates_working=True,
            # The end of a request seldom falls on a page: then the last page boundary is tracked.
            decode_grid=track_interval if page_size == 1 else page_size,
        )
    if is_no_buffer:
        _require_single_rows(page_size)
        return SnapshotRules(
            name=name,
            slots_per_request=num_slots,
            copies_chunk_end=True,
            donates_working=True,
            keeps_match_locked=True,
        )
    grid = math.lcm(chunk_grid, page_size)
    is_lazy = strategy == SlotStrategy.EXTRA_BUFFER_LAZY
    return SnapshotRules(
        name=name,
        slots_per_request=num_slots,
        num_tracked=1 if is_lazy or not has_overlap else 2,
        takes_second_slot=is_lazy,
        keeps_match_locked=True,
        prefill_grid=grid,
        branch_grid=chunk_grid,
        decode_grid=math.lcm(grid, track_interval),
    )


def _require_single_rows(page_size: int) -> None:
    if page_size != 1:
        raise ConfigError(
            f"no_buffer needs page size 1, not {page_size}",
            hint="use --page-size 1, or extra_buffer",
        )
