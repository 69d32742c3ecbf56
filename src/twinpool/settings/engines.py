"""Engines to replay: which settings make a replay do what an engine does.

A preset names a strategy, an eviction order, a queue order, a memory and a page size; whatever a
flag says beats it. Knows no engine at work.

Source: defaults of SGLang 0.5.23 and vLLM 0.33 on a hybrid model; Marconi as its paper has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from twinpool.errors import ConfigError
from twinpool.settings.values import Source, Value

_SGLANG = {
    "mamba_radix_cache_strategy": "extra_buffer",
    "radix_eviction_policy": "lru",
    "schedule_policy": "fcfs",
    "memory_mode": "static",
    "page_size": 1,
}
_PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "twinpool": {},
        "sglang": _SGLANG,
        "sglang-lpm": {**_SGLANG, "schedule_policy": "lpm"},
        "vllm": {
            "mamba_radix_cache_strategy": "align",
            "radix_eviction_policy": "block-lru",
            "schedule_policy": "fcfs",
            "memory_mode": "equal-pages",
            # Grows until a block of KV is as large as a state.
            "page_size": 16,
        },
        "marconi": {
            "mamba_radix_cache_strategy": "marconi",
            "radix_eviction_policy": "marconi",
            "schedule_policy": "fcfs",
            "memory_mode": "one-budget",
            "page_size": 1,
        },
    }
)
ENGINES = tuple(_PRESETS)


def preset_of(engine: str) -> dict[str, Value[object]]:
    """Return the settings that go with an engine, each saying so.

    Args:
        engine: One of `ENGINES`.

    Raises:
        ConfigError: If there is no such engine.
    """
    try:
        preset = _PRESETS[engine]
    except KeyError:
        raise ConfigError(
            f"unknown engine {engine!r}", hint=f"one of {', '.join(ENGINES)}"
        ) from None
    why = f"as {engine} does"
    return {name: Value(value, Source.ASSUMED, why) for name, value in preset.items()}
