"""What the server shows on stderr: log lines, and how far the engine is with coming up.

Never prints a prompt, an answer or a key; stdout is left alone.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from twinpool.clock import Clock, MonotonicClock
from twinpool.engine.protocol import Loading, Log
from twinpool.units import format_bytes

MIN_INTERVAL_S = 1.0


class Console:
    """Writes lines for people.

    Args:
        stream: Where they go; None takes stderr.
        clock: Spaces out the lines of one stage.
    """

    def __init__(self, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock or MonotonicClock()
        self._log = logging.getLogger("twinpool")
        self._stage = ""
        self._shown_s = 0.0

    def start(self, level: str) -> None:
        """Send the log of this process to the stream.

        Args:
            level: `debug`, `info`, `warning` or `error`.

        Changes:
            The root logger.
        """
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger().handlers = [handler]
        self._log.setLevel(level.upper())
        # What strangers send to a port is worth no line; a fault of the server is.
        logging.getLogger("uvicorn").setLevel(logging.ERROR)

    def say(self, line: str) -> None:
        """Log one line."""
        self._log.info(line)

    def show(self, message: Loading | Log) -> None:
        """Log what the engine says; progress of one stage at most once a second."""
        if isinstance(message, Log):
            self._log.log(logging.getLevelNamesMapping()[message.level.upper()], message.text)
            return
        now_s = self._clock.now()
        is_new = message.stage != self._stage
        is_last = message.total > 0 and message.done >= message.total
        if is_new or is_last or now_s - self._shown_s >= MIN_INTERVAL_S:
            self._stage, self._shown_s = message.stage, now_s
            self._log.info(describe(message))


def describe(loading: Loading) -> str:
    """Return a stage and how far it is: `loading weights: 1.2 GiB of 2.4 GiB`."""
    if not loading.total:
        return loading.stage
    if loading.unit == "bytes":
        done, total = format_bytes(loading.done), format_bytes(loading.total)
        return f"{loading.stage}: {done} of {total}"
    return f"{loading.stage}: {loading.done} of {loading.total} {loading.unit}".rstrip()
