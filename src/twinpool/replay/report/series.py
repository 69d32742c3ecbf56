"""Cells as lines: which belong together, what they are called, how they are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinpool.replay.report.document import Cell

# Colours that an engine always has; others take what is left, in order of appearance.
_COLOURS = {"twinpool": 0, "sglang": 1, "vllm": 2, "marconi": 3, "sglang-lpm": 4}
NUM_COLOURS = 7
_POLICIES = ("engine", "strategy", "eviction", "order", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Cells that differ in nothing but the split.

    Attributes:
        name: Engine, and of the policies those by which it differs from others of its engine.
        cells: By rising state slots.
        colour: Colour and shape, by engine.
        dash: 0 for the first of an engine, then counted up.
    """

    name: str
    cells: tuple[Cell, ...]
    colour: int
    dash: int

    @property
    def peak(self) -> float:
        """Highest throughput of it."""
        return max(cell.tokens_per_s or 0.0 for cell in self.cells)


def colours_of(cells: Sequence[Cell]) -> Mapping[str, int]:
    """Give each engine a colour."""
    engines = list(dict.fromkeys(cell.engine for cell in cells))
    colours = {engine: _COLOURS[engine] for engine in engines if engine in _COLOURS}
    spare = [colour for colour in range(NUM_COLOURS) if colour not in colours.values()]
    others = [engine for engine in engines if engine not in _COLOURS]
    for at, engine in enumerate(others):
        # Beyond seven engines the last colour is shared; names and shapes still differ.
        colours[engine] = spare[at] if at < len(spare) else NUM_COLOURS - 1
    return colours


def series_of(cells: Sequence[Cell]) -> list[Series]:
    """Group cells into lines.

    Args:
        cells: All cells; failed ones are left out, and stand in the table.

    Returns:
        Lines by falling peak of throughput.
    """
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if cell.is_shown:
            key = tuple(cell.policy[name] for name in _POLICIES)
            groups.setdefault(key, []).append(cell)
    colours = colours_of(cells)
    ranked = sorted(
        groups.items(), key=lambda item: -max(cell.tokens_per_s or 0.0 for cell in item[1])
    )
    seen: dict[str, int] = {}
    lines = []
    for key, members in ranked:
        dash = seen.get(key[0], 0)
        seen[key[0]] = dash + 1
        lines.append(
            Series(
                name=_name(key, groups),
                cells=tuple(sorted(members, key=lambda cell: (cell.slots, cell.index))),
                colour=colours[key[0]],
                dash=dash,
            )
        )
    return lines


def _name(key: tuple[str, ...], keys: Mapping[tuple[str, ...], object]) -> str:
    kin = [other for other in keys if other[0] == key[0]]
    parts = [part for at, part in enumerate(key) if at and any(other[at] != part for other in kin)]
    return " · ".join([key[0], *parts])
