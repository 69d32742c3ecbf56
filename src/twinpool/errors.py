"""The exception tree of twinpool: every error that a user, a trace or a file can cause.

Knows nothing of who raises or shows an error. An `assert` elsewhere means "this module has a bug";
everything that input can cause is one of the classes below.
"""

from __future__ import annotations


class TwinpoolError(Exception):
    """What happened, with its numbers, and what to change.

    Args:
        message: One sentence that says what happened, with the numbers.
        hint: What to change; empty when there is nothing to change.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(TwinpoolError):
    """A flag, a setting or a config field has a value that cannot be used."""


class UnsupportedModelError(ConfigError):
    """A model config is not understood; the message names the field."""


class CapacityError(TwinpoolError):
    """What was asked can never fit in the pools, however long it waits."""


class OutOfSlots(TwinpoolError):
    """No state slot can be had now.

    Args:
        needed: Slots that were asked for.
        free: Slots that are free.
        evictable: Slots that eviction could free.
    """

    def __init__(self, *, needed: int, free: int, evictable: int) -> None:
        super().__init__(
            f"{needed} state slots needed, {free} free, {evictable} evictable",
            hint="wait for a request to finish, or raise --max-mamba-cache-size",
        )
        self.needed = needed
        self.free = free
        self.evictable = evictable


class OutOfRows(TwinpoolError):
    """No KV rows can be had now.

    Args:
        needed: Rows that were asked for.
        free: Rows that are free.
        evictable: Rows that eviction could free.
    """

    def __init__(self, *, needed: int, free: int, evictable: int) -> None:
        super().__init__(
            f"{needed} KV rows needed, {free} free, {evictable} evictable",
            hint="wait for a request to finish, or give the KV pool more memory",
        )
        self.needed = needed
        self.free = free
        self.evictable = evictable


class TraceError(TwinpoolError):
    """A trace cannot be read.

    Args:
        message: What is wrong.
        path: The file.
        line: The line in it, from 1; 0 when the fault is not on one line.
        hint: What to change.
    """

    def __init__(self, message: str, *, path: str, line: int = 0, hint: str = "") -> None:
        where = f"{path}:{line}" if line else path
        super().__init__(f"{where}: {message}", hint=hint)
        self.path = path
        self.line = line


class StoreError(TwinpoolError):
    """A host or disk store failed; the data is where it was before."""


class InvariantError(TwinpoolError):
    """The books of a pool do not balance: a bug in twinpool.

    Args:
        message: Which rule is broken.
        ledger: The counts that do not add up.
    """

    def __init__(self, message: str, *, ledger: dict[str, int] | None = None) -> None:
        self.ledger = dict(ledger or {})
        counts = ", ".join(f"{name}={count}" for name, count in self.ledger.items())
        super().__init__(f"{message} ({counts})" if counts else message)
