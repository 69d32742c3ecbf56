"""The decision log: one line of JSON per step, the same bytes for the same decisions.

Holds no time and no content of prompts. Knows the shape of a line and where lines go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from twinpool.memory.eviction import Eviction
from twinpool.scheduling.plan import Lane

Sink = Callable[[bytes], None]
Entry = list[int | str | list[int]]


class DecisionLog:
    """Collects what was decided in a step and writes it as one line.

    Args:
        sink: Takes each line, newline included; None drops them.

    Fields of a line, in this order, empty ones left out: `step`; `arrive` [id, prompt tokens];
    `abort` [id]; `retract` [id, tokens computed]; `admit` [id, depth, kv depth, slot]; `lanes`
    [id, start, end, slot, first new row, [checkpoint depths]]; `skipped` checkpoints without a
    slot; `move` [rows]; `finish` [id, reason, tokens computed]; `evict` [reason, depth, rows,
    slots].
    """

    _FIELDS = ("arrive", "abort", "retract", "admit", "lanes", "skipped", "move", "finish", "evict")

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink
        self._entries: dict[str, list[Entry]] = {}

    def add(self, field: str, *values: int | str | list[int]) -> None:
        """Note one decision of the step that is being planned or committed."""
        assert field in self._FIELDS, field
        if self._sink is not None:
            self._entries.setdefault(field, []).append(list(values))

    def add_lanes(self, lanes: Sequence[Lane]) -> None:
        """Note what is planned; it must be known where all rows are."""
        if self._sink is None:
            return
        for lane in lanes:
            depths = [write.depth for write in lane.checkpoints]
            row = int(lane.rows[lane.start])
            self.add("lanes", lane.request_id, lane.start, lane.end, lane.slot, row, depths)

    def add_evictions(self, evictions: list[Eviction]) -> None:
        """Note units that left the tree."""
        for unit in evictions:
            self.add("evict", unit.reason, unit.depth, unit.num_rows, unit.num_slots)

    def write(self, step: int) -> None:
        """Write the line of a step and begin the next."""
        if self._sink is None:
            return
        line: dict[str, object] = {"step": step}
        line |= {name: self._entries[name] for name in self._FIELDS if name in self._entries}
        self._entries = {}
        self._sink(json.dumps(line, separators=(",", ":")).encode() + b"\n")
