"""Settings that the serving guides of some models ask for, by family.

Knows setting names and their values as text; an explicit flag beats them elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """What one model's guide asks for.

    Attributes:
        settings: Values by setting name, as they would be written on the command line.
        note: Where they come from, and what to mind.
    """

    settings: Mapping[str, str]
    note: str


PREFERENCES: Mapping[str, Preference] = {
    "glm5_next": Preference(
        settings={
            "mamba_full_memory_ratio": "0.25",
            "mamba_radix_cache_strategy": "extra_buffer_lazy",
        },
        note="published serving guide; meant for multi-turn agent traffic",
    ),
    "inkling": Preference(
        settings={"mamba_full_memory_ratio": "0.1"},
        note="published serving guide; the state is short convs alone",
    ),
}
