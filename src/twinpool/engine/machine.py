"""Measuring the machine: how much memory this process may use, and how much of it is free.

Reads the system and the limits of its control group; decides nothing and imports no torch.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from twinpool.settings.resolve import Machine

_CGROUP = Path("/sys/fs/cgroup")


def measure_machine(cgroup: Path = _CGROUP) -> Machine:
    """Measure total and free memory.

    Args:
        cgroup: Where the control group of this process is mounted.

    Returns:
        Bytes; a control group's limit counts where it is below the machine's memory.
    """
    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit, used = _limit_and_use(cgroup)
    if limit is not None and limit < total:
        total = limit
        free = max(0, min(free, limit - used))
    return Machine(total_bytes=total, free_bytes=free)


def _limit_and_use(cgroup: Path) -> tuple[int | None, int]:
    """Return limit and use of the control group, version 2 or 1; no limit where there is none."""
    for limit_name, use_name, stat_name in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        limit = _number(cgroup / limit_name)
        if limit is not None:
            use = _number(cgroup / use_name) or 0
            # Pages of files can be dropped: they count as free.
            return limit, max(0, use - _inactive_file(cgroup / stat_name))
    return None, 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _inactive_file(path: Path) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
