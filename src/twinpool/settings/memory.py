"""Memory settings: what both pools are cut from, how they are split, what is kept and evicted.

Knows no bytes of any model or machine; `settings.pools` brings them together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from fractions import Fraction

from twinpool.errors import ConfigError
from twinpool.memory.eviction import POLICY_NAMES
from twinpool.memory.marconi import DEFAULT_ALPHA
from twinpool.memory.running_cap import SlotStrategy
from twinpool.memory.sizing import parse_ratio
from twinpool.settings.fields import (
    about,
    choice,
    dtype,
    fraction,
    integer,
    number,
    optional,
    size,
    switch,
    validate,
)
from twinpool.units import DType

STATE_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


class MemoryMode(enum.StrEnum):
    """How rows and states share the memory."""

    STATIC = "static"
    ELASTIC = "elastic"
    EQUAL_PAGES = "equal-pages"
    ONE_BUDGET = "one-budget"

    @property
    def is_shared(self) -> bool:
        """True when rows and states are drawn from one budget, which only a replay can do."""
        return self in (MemoryMode.EQUAL_PAGES, MemoryMode.ONE_BUDGET)


def _ratio(value: object) -> Fraction:
    return parse_ratio(value if isinstance(value, Fraction) else str(value))


def _states_per_path(value: object) -> int:
    count: int = integer(-(2**31))(value)
    if count == 0 or count < -1:
        raise ConfigError(f"{count} is out of range", hint="use 1 or more, or -1 for no limit")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Both pools and what stays in them; each field is described by its help line."""

    memory_mode: MemoryMode = field(
        default=MemoryMode.ELASTIC,
        metadata=about(
            choice(MemoryMode),
            "--memory",
            "elastic: rows and states share one memory; static: the split is fixed at startup; in "
            "replays also equal-pages (vLLM) and one-budget (bytes without places).",
        ),
    )
    pool_memory: int | None = field(
        default=None,
        metadata=about(
            optional(size),
            "--pool-memory",
            "Bytes for both pools together, for example 256MiB; replaces --mem-fraction-static.",
        ),
    )
    mem_fraction_static: Fraction = field(
        default=Fraction(6, 10),
        metadata=about(
            fraction,
            "--mem-fraction-static",
            "Part of the memory free before loading that weights and both pools may take.",
            is_assumed=True,
        ),
    )
    mamba_full_memory_ratio: Fraction = field(
        default=Fraction(9, 10),
        metadata=about(
            _ratio,
            "--mamba-full-memory-ratio",
            "State bytes to KV bytes; used when no slots are pinned.",
        ),
    )
    max_mamba_cache_size: int | None = field(
        default=None,
        metadata=about(
            optional(integer(1)),
            "--max-mamba-cache-size",
            "State slots, pinned; the KV pool takes the rest.",
        ),
    )
    max_total_tokens: int | None = field(
        default=None,
        metadata=about(optional(integer(1)), "--max-total-tokens", "Upper bound for KV rows."),
    )
    page_size: int = field(
        default=1, metadata=about(integer(1, 65536), "--page-size", "KV rows handed out together.")
    )
    kv_cache_dtype: DType | None = field(
        default=None,
        metadata=about(
            dtype(*DType), "--kv-cache-dtype", "Dtype of KV rows; auto: that of the weights."
        ),
    )
    mamba_ssm_dtype: DType | None = field(
        default=None,
        metadata=about(
            dtype(*STATE_DTYPES),
            "--mamba-ssm-dtype",
            "Dtype of recurrent states; auto: the model's, else float32.",
        ),
    )
    mamba_radix_cache_strategy: SlotStrategy = field(
        default=SlotStrategy.DIRECT,
        metadata=about(
            choice(SlotStrategy),
            "--mamba-radix-cache-strategy",
            "How checkpoints are taken, and so how many slots a running request reserves.",
        ),
    )
    disable_radix_cache: bool = field(
        default=False,
        metadata=about(switch, "--disable-radix-cache", "Keep nothing for prefix reuse."),
    )
    radix_eviction_policy: str = field(
        default="value",
        metadata=about(
            choice(POLICY_NAMES),
            "--radix-eviction-policy",
            "What goes first when a pool needs room.",
        ),
    )
    marconi_alpha: float = field(
        default=DEFAULT_ALPHA,
        metadata=about(
            number(0.0, 1e6),
            "--marconi-alpha",
            "With eviction by marconi: weight of the arithmetic saved per byte against recency.",
            is_assumed=True,
        ),
    )
    mamba_max_states_per_path: int = field(
        default=-1,
        metadata=about(
            _states_per_path,
            "--mamba-max-states-per-path",
            "Checkpoints that one path of the prefix tree may hold; -1 for no limit.",
        ),
    )

    def __post_init__(self) -> None:
        validate(self)
