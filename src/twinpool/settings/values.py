"""A value and how it was got: what every effective setting is shown with.

Knows no setting in particular.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Source(enum.StrEnum):
    """Where a value came from."""

    FLAG = "flag"
    FILE = "file"
    MODEL_DEFAULT = "model default"
    DEFAULT = "default"
    ASSUMED = "assumed"
    CATALOG = "catalog"
    DERIVED = "derived"
    MEASURED = "measured"

    @property
    def is_explicit(self) -> bool:
        """True when a person wrote the value down for this server."""
        return self in (Source.FLAG, Source.FILE)


@dataclass(frozen=True, slots=True)
class Value(Generic[T_co]):
    """One value with its provenance.

    Attributes:
        value: The value.
        source: Where it came from.
        why: What it was derived from, or what binds; empty where the source says it all.
    """

    value: T_co
    source: Source
    why: str = ""
