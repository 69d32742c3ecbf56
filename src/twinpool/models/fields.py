"""Typed reading of a JSON object that remembers which fields were read.

Knows no field by name; it turns wrong types and ranges into errors that name the field.
"""

from __future__ import annotations

import math
from typing import Any

from twinpool.errors import UnsupportedModelError

_REQUIRED: Any = object()


class Fields:
    """The fields of one JSON object.

    Args:
        values: The object.
        within: Prefix of the names in messages, for example `text_config.`.
    """

    def __init__(self, values: dict[str, Any], *, within: str = "") -> None:
        self._values = values
        self._within = within
        self._read: set[str] = set()

    def wrong(self, name: str, value: object, why: str) -> UnsupportedModelError:
        """Return the error that says that a field has a value which cannot be used."""
        return UnsupportedModelError(f"config field {self._within}{name} is {value!r}", hint=why)

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = _REQUIRED) -> Any:
        """Read one field.

        Args:
            name: The field.
            kind: Type or types that it may have; null counts as absent.
            default: What an absent field gives; without it absence is an error.

        Raises:
            UnsupportedModelError: If it is absent and needed, or of another type.
        """
        self._read.add(name)
        value = self._values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise UnsupportedModelError(f"config field {self._within}{name} is missing")
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        # A bool is an int to Python and never one in a config.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(one.__name__ for one in kinds)
            raise self.wrong(name, value, f"a value of type {names} is needed")
        return value

    def count(self, name: str, default: Any = _REQUIRED, *, minimum: int = 1) -> int:
        """Read a whole number of at least `minimum`."""
        value: int = self.take(name, int, default)
        if value < minimum:
            raise self.wrong(name, value, f"{minimum} or more is needed")
        return value

    def positive(self, name: str, default: float) -> float:
        """Read a finite number above 0."""
        value = float(self.take(name, (int, float), default))
        if not math.isfinite(value) or value <= 0:
            raise self.wrong(name, value, "a finite number above 0 is needed")
        return value

    def only(self, name: str, value: object, why: str) -> None:
        """Read a field of which one value alone is supported; absent is that value.

        Raises:
            UnsupportedModelError: If it has another value.
        """
        self._read.add(name)
        found = self._values.get(name)
        if found is not None and found != value:
            raise self.wrong(name, found, why)

    def unread(self, known: frozenset[str]) -> list[str]:
        """Return the names of fields that nobody read and that are not in `known`, sorted."""
        rest = set(self._values) - self._read - known
        return [self._within + name for name in sorted(rest)]
