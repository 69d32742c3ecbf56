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

_TWINPOOL = {
    "mamba_radix_cache_strategy": "direct",
    "radix_eviction_policy": "value",
    "schedule_policy": "least-work",
    "page_size": 1,
}
_SGLANG = {
    "radix_eviction_policy": "lru",
    "schedule_policy": "fcfs",
    "memory_mode": "static",
    "page_size": 1,
}
_PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "twinpool": {**_TWINPOOL, "memory_mode": "elastic"},
        # The same with a split, for a sweep to look for the best one.
        "twinpool-static": {**_TWINPOOL, "memory_mode": "static"},
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
# Defaults of a model are that engine's own, and so beat these.
_WITHOUT_MODEL_DEFAULT: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "sglang": {"mamba_radix_cache_strategy": "extra_buffer"},
        "sglang-lpm": {"mamba_radix_cache_strategy": "extra_buffer"},
    }
)
ENGINES = tuple(_PRESETS)

Settings = dict[str, Value[object]]


def preset_of(engine: str) -> tuple[Settings, Settings]:
    """Return the settings that go with an engine, each saying so.

    Args:
        engine: One of `ENGINES`.

    Returns:
        Settings that beat the model's defaults, and settings for where the model has none.

    Raises:
        ConfigError: If there is no such engine.
    """
    if engine not in _PRESETS:
        raise ConfigError(f"unknown engine {engine!r}", hint=f"one of {', '.join(ENGINES)}")
    why = f"as {engine} does"

    def said(settings: Mapping[str, object]) -> Settings:
        return {name: Value(value, Source.ASSUMED, why) for name, value in settings.items()}

    return said(_PRESETS[engine]), said(_WITHOUT_MODEL_DEFAULT.get(engine, {}))
