"""Model families: how each one's config says which layers it has; knows no bytes and no tensor.

A family is one value in one file. To add one, write its file and name it in `FAMILIES`.
"""

from __future__ import annotations

from twinpool.spec.families.bailing import BAILING_HYBRID
from twinpool.spec.families.bamba import BAMBA
from twinpool.spec.families.deepseek import LATENT_FAMILIES
from twinpool.spec.families.falcon_h1 import FALCON_H1
from twinpool.spec.families.family import Family
from twinpool.spec.families.glm5_next import GLM5_NEXT, GLM5_NEXT_TEXT
from twinpool.spec.families.granite_hybrid import GRANITE_HYBRID
from twinpool.spec.families.inkling import INKLING, INKLING_TEXT
from twinpool.spec.families.jamba import JAMBA
from twinpool.spec.families.kimi import KIMI_K3, KIMI_LINEAR
from twinpool.spec.families.lfm2 import LFM2, LFM2_MOE, LFM2_VL
from twinpool.spec.families.mamba import FALCON_MAMBA, MAMBA, MAMBA2
from twinpool.spec.families.minimax import MINIMAX, MINIMAX_M1, MINIMAX_TEXT_01
from twinpool.spec.families.nemotron_h import NEMOTRON_H, NEMOTRON_H_NESTED
from twinpool.spec.families.olmo_hybrid import OLMO_HYBRID
from twinpool.spec.families.plain import PLAIN_FAMILIES
from twinpool.spec.families.plain_experts import PLAIN_EXPERT_FAMILIES
from twinpool.spec.families.preferences import PREFERENCES
from twinpool.spec.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE, QWEN3_5_MOE_TEXT, QWEN3_5_TEXT
from twinpool.spec.families.qwen3_next import QWEN3_NEXT
from twinpool.spec.families.zamba2 import ZAMBA2

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        QWEN3_NEXT,
        QWEN3_5,
        QWEN3_5_TEXT,
        QWEN3_5_MOE,
        QWEN3_5_MOE_TEXT,
        NEMOTRON_H,
        *NEMOTRON_H_NESTED,
        GRANITE_HYBRID,
        BAMBA,
        FALCON_H1,
        JAMBA,
        ZAMBA2,
        MAMBA,
        FALCON_MAMBA,
        MAMBA2,
        KIMI_LINEAR,
        KIMI_K3,
        GLM5_NEXT,
        GLM5_NEXT_TEXT,
        INKLING,
        INKLING_TEXT,
        OLMO_HYBRID,
        MINIMAX,
        MINIMAX_TEXT_01,
        MINIMAX_M1,
        BAILING_HYBRID,
        LFM2,
        LFM2_MOE,
        LFM2_VL,
        *PLAIN_FAMILIES,
        *PLAIN_EXPERT_FAMILIES,
        *LATENT_FAMILIES,
    )
}

# Families with a forward pass in `twinpool.models`; the others are sized only.
SERVED = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")

__all__ = ["FAMILIES", "PREFERENCES", "SERVED", "Family"]
