"""Byte sizes and dtypes as values: parsing, printing, widths.

Knows nothing of models or pools. Sizes are integers of bytes; GiB is 2**30, GB 10**9.
"""

from __future__ import annotations

import enum
import re
from decimal import Decimal

from twinpool.errors import ConfigError

KIB = 2**10
MIB = 2**20
GIB = 2**30

_FACTORS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kb": 10**3,
    "kib": KIB,
    "m": MIB,
    "mb": 10**6,
    "mib": MIB,
    "g": GIB,
    "gb": 10**9,
    "gib": GIB,
    "t": 2**40,
    "tb": 10**12,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)


class DType(enum.Enum):
    """Element types of weights, rows and states, by the names that configs use."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8 = "fp8_e4m3"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1}[self.value]

    @classmethod
    def parse(cls, name: str) -> DType:
        """Read a dtype name, with or without `torch.` before it.

        Args:
            name: For example `bfloat16`, `bf16`, `torch.float32`.

        Raises:
            ConfigError: If the name is not known.
        """
        short = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16", "half": "float16"}
        plain = name.strip().lower().removeprefix("torch.")
        try:
            return cls(short.get(plain, plain))
        except ValueError:
            known = ", ".join(sorted(member.value for member in cls))
            raise ConfigError(f"unknown dtype {name!r}", hint=f"one of {known}") from None


def parse_bytes(text: str) -> int:
    """Read a size such as `256MiB`, `62.4GiB` or `67052172800`.

    Args:
        text: A number with an optional unit: KiB, MiB, GiB, TiB (or K, M, G, T) are powers of
            1024; kB, MB, GB, TB are powers of 1000. Case does not matter.

    Returns:
        Whole bytes, rounded down.

    Raises:
        ConfigError: If the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise ConfigError(
            f"{text!r} is not a size in bytes", hint="write 256MiB, 62.4GiB or 67052172800"
        )
    return int(Decimal(match.group(1)) * factor)


def format_bytes(num_bytes: int) -> str:
    """Print a size for people: `73.7 MiB`.

    Args:
        num_bytes: Bytes, 0 or more.
    """
    for name, factor in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {name}"
    return f"{num_bytes} B"
