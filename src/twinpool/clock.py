"""Clocks: where the time comes from, so that the core never asks the machine.

Knows nothing of schedulers; the live engine passes `MonotonicClock`, a replay `VirtualClock`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds from an arbitrary zero; it never goes back."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return seconds of the machine's monotonic clock."""
        return time.monotonic()


class VirtualClock:
    """A clock that stands until it is moved.

    Args:
        start_s: The time at which it stands at first, in seconds.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now_s

    def advance_to(self, when_s: float) -> None:
        """Move to a later time.

        Args:
            when_s: The new time in seconds, not before the present one.

        Raises:
            ValueError: If `when_s` lies in the past.
        """
        if when_s < self._now_s:
            raise ValueError(f"clock stands at {self._now_s} s and cannot go back to {when_s} s")
        self._now_s = when_s
