"""Typed reading of a parsed `config.json`: every error names the field it is about.

Knows no model family; it only checks types and ranges and remembers which fields were absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twinpool.errors import ConfigError, UnsupportedModelError
from twinpool.units import DType

MAX_INT = 2**31 - 1
STATE_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


class ConfigReader:
    """One JSON object of a model config, with the family's defaults behind it.

    Args:
        fields: The object as parsed; never changed.
        defaults: What a field is when the object lacks it.
        where: Prefix of field names in errors, such as `text_config.`; empty at the top.
        outer: The object that this one stands in, asked for dtypes that it lacks.
    """

    def __init__(
        self,
        fields: Mapping[str, object],
        defaults: Mapping[str, object],
        *,
        where: str = "",
        outer: Mapping[str, object] | None = None,
    ) -> None:
        self._fields = fields
        self._defaults = defaults
        self._where = where
        self._outer = outer or {}
        self._assumed: dict[str, None] = {}

    @property
    def assumed(self) -> tuple[str, ...]:
        """Fields read so far that the config lacks, in reading order."""
        return tuple(self._assumed)

    def assume(self, name: str) -> None:
        """Note that the config lacks a field and that a rule of the family stands in for it."""
        self._assumed[name] = None

    def integer(self, name: str, *, low: int = 1, high: int = MAX_INT) -> int:
        """Read a whole number.

        Args:
            name: The field.
            low: Smallest value allowed.
            high: Largest value allowed.

        Raises:
            UnsupportedModelError: If it is missing without a default, not an integer or out of
                range.
        """
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(name, f"is {_show(value)}, not an integer")
        if not low <= value <= high:
            raise self.error(name, f"is {_show(value)}", hint=f"it must be from {low} to {high}")
        return value

    def optional_integer(self, name: str, *, low: int = 1, high: int = MAX_INT) -> int | None:
        """Read a whole number that may be absent or null.

        Raises:
            UnsupportedModelError: If it is there and no integer, or out of range.
        """
        if self._fields.get(name, self._defaults.get(name)) is None:
            return None
        return self.integer(name, low=low, high=high)

    def integer_or_auto(self, name: str) -> int | None:
        """Read a whole number, 1 or more; None where the word `auto` stands for a derived one.

        Raises:
            UnsupportedModelError: If it is neither, or missing without a default.
        """
        return None if self._get(name) == "auto" else self.integer(name)

    def number(self, name: str) -> float:
        """Read a finite number, whole or not.

        Raises:
            UnsupportedModelError: If it is missing without a default, or no finite number.
        """
        value = self._get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, f"is {_show(value)}, not a number")
        if not -MAX_INT <= value <= MAX_INT:
            raise self.error(name, f"is {_show(value)}, which is out of range")
        return float(value)

    def integers(self, name: str, *, low: int, high: int) -> tuple[int, ...] | None:
        """Read an optional list of whole numbers.

        Args:
            name: The field.
            low: Smallest value allowed.
            high: Largest value allowed.

        Returns:
            The numbers as they stand, or None when the field is absent or null.

        Raises:
            UnsupportedModelError: If it is not a list of integers in that range.
        """
        value = self._fields.get(name, self._defaults.get(name))
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(name, f"is {_show(value)}, not a list")
        for index, entry in enumerate(value):
            if not isinstance(entry, int) or isinstance(entry, bool) or not low <= entry <= high:
                raise self.error(
                    f"{name}[{index}]",
                    f"is {_show(entry)}",
                    hint=f"it must be an integer from {low} to {high}",
                )
        return tuple(value)

    def text(self, name: str) -> str | None:
        """Read an optional string; None when the field is absent or null.

        Raises:
            UnsupportedModelError: If it is there and no string.
        """
        value = self._fields.get(name, self._defaults.get(name))
        if value is not None and not isinstance(value, str):
            raise self.error(name, f"is {_show(value)}, not a string")
        return value

    def has(self, name: str) -> bool:
        """True when the config itself has the field, and not null."""
        return self._fields.get(name) is not None

    def is_null(self, name: str) -> bool:
        """True when the field, or the default for it, is null or unknown."""
        return self._fields.get(name, self._defaults.get(name)) is None

    def has_any(self, names: Sequence[str]) -> bool:
        """True when this object or the outer one has one of the fields, and not null."""
        return any(
            fields.get(name) is not None for fields in (self._fields, self._outer) for name in names
        )

    def inside(self, name: str, defaults: Mapping[str, object]) -> ConfigReader | None:
        """Return a reader of the object in a field; None when the field is absent or null.

        Args:
            name: The field.
            defaults: What a field of that object is when it lacks it.

        Raises:
            UnsupportedModelError: If the field is there and holds no object.
        """
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, f"is {_show(value)}, not an object")
        return ConfigReader(value, defaults, where=f"{self._where}{name}.")

    def boolean(self, name: str, default: bool) -> bool:
        """Read true or false; asks the outer object first, then this one, then `default`."""
        for fields, where in ((self._outer, ""), (self._fields, self._where)):
            value = fields.get(name)
            if value is None:
                continue
            if not isinstance(value, bool):
                raise UnsupportedModelError(
                    f"config field {where}{name} is {_show(value)}, not true or false"
                )
            return value
        return default

    def names(
        self, name: str, *, known: Sequence[str], count: int | None
    ) -> tuple[str, ...] | None:
        """Read an optional list of names.

        Args:
            name: The field.
            known: The names that may stand in it.
            count: How many there must be; None: at least one.

        Returns:
            The names, or None when the field is absent or null.

        Raises:
            UnsupportedModelError: If it is not a list of known names of that length.
        """
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(name, f"is {_show(value)}, not a list")
        if count is not None and len(value) != count:
            raise self.error(name, f"has {len(value)} entries for {count} layers")
        if not value:
            raise self.error(name, "is an empty list")
        for index, entry in enumerate(value):
            if entry not in known:
                raise self.error(
                    f"{name}[{index}]",
                    f"is {_show(entry)}",
                    hint=f"this family knows {', '.join(known)}",
                )
        return tuple(value)

    def dtype(self, names: Sequence[str], default: DType) -> DType:
        """Read a dtype from the first of several fields, here or in the outer object.

        Args:
            names: Fields in order of precedence, for example `dtype`, `torch_dtype`.
            default: What it is when none of them is set.

        Raises:
            UnsupportedModelError: If the name is no dtype of weights or states.
        """
        for fields, where in ((self._fields, self._where), (self._outer, "")):
            for name in names:
                value = fields.get(name)
                if value is not None:
                    return _parse_dtype(f"{where}{name}", value)
        self._assumed[names[0]] = None
        return default

    def error(self, name: str, what: str, *, hint: str = "") -> UnsupportedModelError:
        """Build the error for a field; the caller raises it.

        Args:
            name: The field.
            what: The rest of the sentence, for example `is 0`.
            hint: What to change.
        """
        return UnsupportedModelError(f"config field {self._where}{name} {what}", hint=hint)

    def _get(self, name: str) -> object:
        if name in self._fields:
            return self._fields[name]
        if name not in self._defaults:
            raise self.error(name, "is missing")
        self._assumed[name] = None
        return self._defaults[name]


def _parse_dtype(field: str, value: object) -> DType:
    try:
        dtype = DType.parse(value) if isinstance(value, str) else None
    except ConfigError:
        dtype = None
    if dtype not in STATE_DTYPES:
        known = ", ".join(known.value for known in STATE_DTYPES)
        raise UnsupportedModelError(
            f"config field {field} is {_show(value)}, not a dtype of weights or states",
            hint=f"one of {known}",
        )
    return dtype


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
