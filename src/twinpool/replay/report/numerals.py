"""Numbers as people read them, each with its unit; knows nothing of what they count."""

from __future__ import annotations

from twinpool.units import GIB

MISSING = "\u2013"
# A narrow space that does not break, and the sign of multiplication.
_THIN = "\u202f"
_TIMES = "\u00d7"
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def percent(value: float | None, digits: int = 0) -> str:
    """Write a fraction in percent, so that neither all nor nothing is claimed falsely."""
    if value is None:
        return MISSING
    text = f"{value * 100:.{digits}f}"
    if value > 0 and float(text) == 0:
        return f"<{_THIN}{10**-digits:g}{_THIN}%"
    if value < 1 and float(text) == 100:
        return f">{_THIN}{100 - 10**-digits:g}{_THIN}%"
    return f"{text}{_THIN}%"


def whole(value: float | None) -> str:
    """Write a count with its thousands apart."""
    if value is None:
        return MISSING
    return f"{round(value):,}".replace(",", _THIN)


def large(value: float | None) -> str:
    """Write a count in three figures with k, M, G or T."""
    if value is None:
        return MISSING
    for size, letter in _LARGE:
        # What would round up to the next letter has it already.
        if abs(value) >= size * 0.9995:
            return f"{_three(value / size)}{_THIN}{letter}"
    return _three(value)


def seconds(value: float | None) -> str:
    """Write a time in the unit that suits it."""
    if value is None:
        return MISSING
    if value == 0:
        return f"0{_THIN}s"
    if abs(value) < 0.9995:
        return f"{_three(value * 1e3)}{_THIN}ms"
    if abs(value) < 120:
        return f"{_three(value)}{_THIN}s"
    if abs(value) < 7200:
        return f"{_three(value / 60)}{_THIN}min"
    return f"{_three(value / 3600)}{_THIN}h"


def gibibytes(value: float | None) -> str:
    """Write bytes in GiB."""
    return MISSING if value is None else f"{_three(value / GIB)}{_THIN}GiB"


def ratio(value: float | None) -> str:
    """Write a ratio with three figures."""
    return MISSING if value is None else f"{value:.3g}"


def times(value: float) -> str:
    """Write a multiple."""
    return f"{_three(value)}{_TIMES}"


def exact(value: object) -> str:
    """Write a value of any kind so that nothing of it is lost to the eye."""
    if isinstance(value, bool) or value is None:
        return MISSING if value is None else str(value).lower()
    if isinstance(value, int):
        return whole(value) if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return whole(value) if value.is_integer() and abs(value) >= 10_000 else f"{value:.6g}"
    return str(value)


def _three(value: float) -> str:
    """Write three figures, without an exponent."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}".rstrip("0").rstrip(".")
