"""Model families: how each one's config says which layers it has; knows no bytes and no tensor.

A family is one value in one file. To add one, write its file and name it in `FAMILIES`.
"""

from __future__ import annotations

from twinpool.spec.families.family import Family
from twinpool.spec.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE, QWEN3_5_MOE_TEXT, QWEN3_5_TEXT
from twinpool.spec.families.qwen3_next import QWEN3_NEXT

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (QWEN3_NEXT, QWEN3_5, QWEN3_5_TEXT, QWEN3_5_MOE, QWEN3_5_MOE_TEXT)
}

__all__ = ["FAMILIES", "Family"]
