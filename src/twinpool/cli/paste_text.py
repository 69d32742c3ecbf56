"""How values are written in flags to paste: exact decimals, and dtypes by an engine's names.

Knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, localcontext
from fractions import Fraction

from twinpool.errors import ConfigError
from twinpool.settings.size_plan import SizePlan
from twinpool.units import DType

_DIGITS = 60


def decimal_text(value: Fraction) -> str:
    """Write a number that was given in decimal digits back in all of them, without an exponent.

    Args:
        value: Zero or more; one with no finite decimal form is cut after 60 digits.
    """
    with localcontext(prec=_DIGITS):
        exact = Decimal(value.numerator) / Decimal(value.denominator)
        return format(exact.normalize(), "f")


def rows_flag(plan: SizePlan, names: Mapping[DType, str]) -> list[str]:
    """Return the flag for the dtype of KV rows; empty when the engine takes it by itself.

    Args:
        plan: What `plan_size` found.
        names: What the engine calls the dtypes that it can store rows in.

    Raises:
        ConfigError: If the engine cannot store such rows.
    """
    asked = plan.resolved.memory.kv_cache_dtype
    if asked is None:
        return []
    if asked in names:
        return ["--kv-cache-dtype", names[asked]]
    if asked is plan.pools.spec.dtype:
        return []
    known = ", ".join(names.values())
    raise ConfigError(
        f"it stores no rows in {asked.value} for weights in {plan.pools.spec.dtype.value}",
        hint=f"one of {known}",
    )
