"""Setting fields: a parser, a flag and a help line beside each default.

A parser takes what a flag, a file or code gives (text, a number, or the parsed value itself) and
returns the parsed value, or raises a `ConfigError`. Knows no setting in particular.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

from twinpool.errors import ConfigError
from twinpool.units import DType, parse_bytes

Parser = Callable[[object], Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """What is known of one setting.

    Attributes:
        name: Its name in files and in code.
        flag: Its flag, with the dashes; empty for a positional argument.
        help: One line that says what it does.
        default: What it is when nobody sets it.
        parse: Reads a value, or raises a `ConfigError` without the setting's name.
        is_switch: True for a flag that takes no value.
        is_list: True for a flag that may be repeated.
        is_secret: True when the value must not be shown.
        is_assumed: True when the default is a guess about the machine or the workload.
    """

    name: str
    flag: str
    help: str
    default: object
    parse: Parser
    is_switch: bool
    is_list: bool
    is_secret: bool
    is_assumed: bool

    def read(self, value: object) -> Any:
        """Parse a value; an error names the setting.

        Args:
            value: Text, number or parsed value.

        Raises:
            ConfigError: If the value cannot be used.
        """
        try:
            return self.parse(value)
        except ConfigError as error:
            label = self.flag or self.name
            # What a secret looks like is nobody's business, in a log least of all.
            message = "the value cannot be used" if self.is_secret else error.message
            raise ConfigError(f"{label}: {message}", hint=error.hint) from None


def about(
    parse: Parser,
    flag: str,
    help: str,
    *,
    is_secret: bool = False,
    is_assumed: bool = False,
) -> dict[str, object]:
    """Describe a setting, as the metadata of its dataclass field.

    Args:
        parse: Reads a value.
        flag: Its flag, with the dashes; empty for a positional argument.
        help: One line that says what it does.
        is_secret: True when the value must not be shown.
        is_assumed: True when the default is a guess about the machine or the workload.
    """
    return {
        "parse": parse,
        "flag": flag,
        "help": help,
        "is_secret": is_secret,
        "is_assumed": is_assumed,
    }


def fields_of(part: type) -> tuple[SettingField, ...]:
    """Return the settings of one part, in the order in which they are declared."""
    return tuple(
        SettingField(
            name=field.name,
            default=field.default,
            is_switch=field.metadata["parse"] is switch,
            is_list=isinstance(field.default, tuple),
            **field.metadata,
        )
        for field in dataclasses.fields(part)
    )


def validate(part: object) -> None:
    """Parse every field of a settings dataclass in its `__post_init__`.

    Raises:
        ConfigError: If a value cannot be used; the message names the flag.

    Changes:
        Fields given as text become parsed values.
    """
    for field in fields_of(type(part)):
        object.__setattr__(part, field.name, field.read(getattr(part, field.name)))


def optional(parse: Parser) -> Parser:
    """Let None stand for "not set"."""

    def parse_optional(value: object) -> Any:
        return None if value is None else parse(value)

    return parse_optional


def switch(value: object) -> bool:
    """Read true or false."""
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{_show(value)} is not true or false")


def integer(low: int, high: int = 2**31 - 1) -> Parser:
    """Read whole numbers from `low` to `high`."""

    def parse_integer(value: object) -> int:
        if isinstance(value, str):
            digits = value.strip()
            is_number = digits.removeprefix("-").isdecimal() and digits.isascii()
            number = int(digits) if is_number and len(digits) <= 20 else None
        else:
            number = value if isinstance(value, int) and not isinstance(value, bool) else None
        if number is None:
            raise ConfigError(
                f"{_show(value)} is not a whole number", hint="write it in digits, such as 4096"
            )
        if not low <= number <= high:
            # Python refuses to print numbers of thousands of digits.
            shown = number if abs(number) < 10**20 else "a number of more than 20 digits"
            raise ConfigError(f"{shown} is out of range", hint=f"use {low} to {high}")
        return number

    return parse_integer


def number(low: float, high: float) -> Parser:
    """Read finite decimal numbers from `low` to `high`."""

    def parse_number(value: object) -> float:
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
                raise TypeError
            parsed = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"{_show(value)} is not a number") from None
        if not math.isfinite(parsed) or not low <= parsed <= high:
            raise ConfigError(f"{parsed:g} is out of range", hint=f"use {low:g} to {high:g}")
        return parsed

    return parse_number


def fraction(value: object) -> Fraction:
    """Read a part of a whole, above 0 and below 1, exactly as it is written."""
    number(0.0, 1.0)(value if not isinstance(value, Fraction) else float(value))
    exact = value if isinstance(value, Fraction) else Fraction(str(value).strip())
    if not 0 < exact < 1:
        raise ConfigError(f"{value} is not a fraction", hint="use a number between 0 and 1")
    return exact


def size(value: object) -> int:
    """Read a number of bytes, 1 or more, such as `256MiB`."""
    num_bytes = parse_bytes(value) if isinstance(value, str) else integer(1, 2**62)(value)
    return cast(int, integer(1, 2**62)(num_bytes))


def choice(names: Iterable[str]) -> Parser:
    """Read one of several names; with a `StrEnum`, its members."""
    known = {str(name): name for name in names}

    def parse_choice(value: object) -> str:
        if not isinstance(value, str) or value not in known:
            raise ConfigError(f"{_show(value)} is not known", hint=f"one of {', '.join(known)}")
        return known[value]

    return parse_choice


def dtype(*known: DType) -> Parser:
    """Read one of several dtypes; `auto` and None mean "as the model has it"."""

    def parse_dtype(value: object) -> DType | None:
        if value is None or value == "auto":
            return None
        parsed = DType.parse(value) if isinstance(value, str) else value
        if parsed not in known:
            names = ", ".join(member.value for member in known)
            raise ConfigError(f"{_show(value)} cannot be used here", hint=f"auto, {names}")
        return parsed

    return parse_dtype


def text(value: object) -> str:
    """Read text that is not empty and has no control characters."""
    if not isinstance(value, str):
        raise ConfigError(f"{_show(value)} is not text")
    if not value.strip() or not value.isprintable():
        raise ConfigError(f"{_show(value)} is empty or has characters that do not print")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Read a list of texts; a single text is a list of one."""
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{type(value).__name__} is not a list of texts")
    return tuple(text(entry) for entry in value)


def _show(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
