"""The registry: which implementation serves the ops of this process.

Knows no kernel's inside. A choice follows from the processor's features and a check of the bits
that an implementation gives; never from a clock, so that it is the same on every start.
"""

from __future__ import annotations

from typing import Literal

from twinpool.kernels import reference, reference_mixers
from twinpool.kernels.table import Choice, Experts, Linear, OpTable

__all__ = ["Choice", "Experts", "Kind", "Linear", "OpTable", "load"]

Kind = Literal["auto", "reference"]


def load(kind: Kind = "auto") -> OpTable:
    """The op table of this process.

    Args:
        kind: `reference` for the plain torch twins, `auto` for the fastest that may serve here.

    Returns:
        The table; the same functions on every call.
    """
    if kind == "reference":
        return _reference_table("")
    try:
        from twinpool.kernels import fast
    except ImportError as error:
        return _reference_table(f"cannot be imported: {error}")
    return fast.table()


def _reference_table(refused: str) -> OpTable:
    names = [name for name in OpTable.__dataclass_fields__ if name not in ("name", "choices")]
    reasons = (("numba", refused),) if refused else ()
    return OpTable(
        name="reference",
        choices=tuple(Choice(name, "torch", reasons) for name in names),
        pack_linear=reference.ReferenceLinear,
        pack_head=reference.ReferenceLinear,
        pack_experts=reference.ReferenceExperts,
        embed=reference.embed,
        rms_norm=reference.rms_norm,
        add_rms_norm=reference.add_rms_norm,
        silu_mul=reference.silu_mul,
        add_gated=reference.add_gated,
        route=reference.route,
        rope=reference.rope,
        attention=reference_mixers.attention,
        gated_delta=reference_mixers.gated_delta,
        log_softmax=reference.log_softmax,
    )
