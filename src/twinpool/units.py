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
    """Element types of weights, rows and states, by the names that configs and flags use."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    MXFP8 = "mxfp8"
    FP4 = "fp4_e2m1"

    @property
    def bits(self) -> int:
        """Bits of one element, scales left out."""
        return _BITS[self.value]

    @property
    def scale_block(self) -> int:
        """Elements that share one scale of a byte; 0 for a dtype without scales."""
        return _SCALE_BLOCKS.get(self.value, 0)

    @property
    def is_fp8(self) -> bool:
        """True for the plain eight-bit floats."""
        return self in (DType.FP8, DType.FP8_E5M2)

    @property
    def itemsize(self) -> int:
        """Bytes of one element; only for a dtype whose elements are whole bytes, without scales."""
        assert self.bits % 8 == 0, f"elements of {self.value} are no whole bytes"
        assert not self.scale_block, f"elements of {self.value} have scales beside them"
        return self.bits // 8

    def bytes_of(self, elements: int) -> int:
        """Bytes of some elements that lie together, with their scales, rounded up to whole bytes.

        Args:
            elements: How many, 0 or more.
        """
        values = -(-elements * self.bits // 8)
        return values + (-(-elements // self.scale_block) if self.scale_block else 0)

    @classmethod
    def parse(cls, name: str) -> DType:
        """Read a dtype name, with or without `torch.` before it.

        Args:
            name: For example `bfloat16`, `bf16`, `torch.float32`, `fp8`, `torch.float8_e4m3fn`.

        Raises:
            ConfigError: If the name is not known.
        """
        plain = name.strip().lower().removeprefix("torch.")
        try:
            return cls(_ALIASES.get(plain, plain))
        except ValueError:
            known = ", ".join(sorted(member.value for member in cls))
            raise ConfigError(f"unknown dtype {name[:40]!r}", hint=f"one of {known}") from None


_BITS = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "mxfp8": 8,
    "fp4_e2m1": 4,
}
_SCALE_BLOCKS = {"mxfp8": 32, "fp4_e2m1": 16}
_ALIASES = {
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "fp4": "fp4_e2m1",
    "nvfp4": "fp4_e2m1",
    "float4_e2m1fn_x2": "fp4_e2m1",
}


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
