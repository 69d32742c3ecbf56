"""The thrash watch: says when much of the work is done again because of evictions.

Compares snapshots; knows no scheduler and changes nothing.
"""

from __future__ import annotations

from twinpool.scheduling.events import Snapshot

# Steps between two looks: a look walks over the running requests.
LOOK_STEPS = 256
# Computed tokens that a judgement needs, and the part of them from which it is thrash.
WINDOW_TOKENS = 16_384
THRASH_PART = 0.2


class ThrashWatch:
    """Looks at snapshots from time to time.

    Attributes:
        next_step: The step from which the next look is worth while.
    """

    def __init__(self) -> None:
        self.next_step = LOOK_STEPS
        self._computed = 0
        self._thrashed = 0

    def look(self, snapshot: Snapshot) -> str:
        """Return a line for the log, empty while there is nothing to say.

        Args:
            snapshot: The scheduler's counters now.

        Changes:
            The window, which begins anew when it was long enough.
        """
        self.next_step = snapshot.num_steps + LOOK_STEPS
        computed = snapshot.computed_tokens - self._computed
        if computed < WINDOW_TOKENS:
            return ""
        thrashed = snapshot.thrashed_tokens - self._thrashed
        self._computed, self._thrashed = snapshot.computed_tokens, snapshot.thrashed_tokens
        if thrashed < THRASH_PART * computed:
            return ""
        return (
            f"thrash: {thrashed} of the last {computed} computed tokens had been evicted a short "
            f"time before; {snapshot.num_running} requests run, {snapshot.num_waiting} wait, and "
            f"the longest wait was {snapshot.longest_wait_s:.0f} s. Give the pools more memory, or "
            "admit fewer sessions"
        )
