"""Model settings: which checkpoint is served, and how it is read.

Knows no file format.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.settings.fields import about, dtype, optional, switch, text, validate
from twinpool.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The checkpoint; each field is described by its help line."""

    model_path: str | None = field(
        default=None,
        metadata=about(
            optional(text),
            "",
            "Checkpoint folder in Hugging Face layout; default: a small model that is built here.",
        ),
    )
    skip_tokenizer_init: bool = field(
        default=False,
        metadata=about(
            switch, "--skip-tokenizer-init", "Load no tokenizer: prompts are token ids only."
        ),
    )
    dtype: DType | None = field(
        default=None,
        metadata=about(
            dtype(DType.FLOAT32, DType.BFLOAT16),
            "--dtype",
            "Dtype of weights and computation; auto: that of the checkpoint.",
        ),
    )
    debug_poison: bool = field(
        default=False,
        metadata=about(
            switch,
            "--debug-poison",
            "Fill freed rows and slots with NaN, so that a read of one shows (slow).",
        ),
    )

    def __post_init__(self) -> None:
        validate(self)
