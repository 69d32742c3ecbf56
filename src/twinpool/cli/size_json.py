"""The stable JSON of `twinpool size`; knows no layout for people."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from twinpool.cli.model_argument import NamedModel
from twinpool.cli.paste import Paste
from twinpool.cli.workload_json import concurrency_document, workload_document
from twinpool.settings.resolve import to_json
from twinpool.settings.size_plan import SizePlan
from twinpool.settings.values import Value


def size_document(model: NamedModel, plan: SizePlan, flags: tuple[Paste, ...]) -> dict[str, Any]:
    """Build the document; counts and bytes are integers, ratios floats, unknown values null.

    Args:
        model: What was sized.
        plan: What came of it.
        flags: Flags to paste, by engine.
    """
    pools, geometry = plan.pools, plan.pools.geometry
    sizes, cap = pools.sizes, pools.cap
    has_both = bool(geometry.slot_bytes and geometry.row_bytes)
    return {
        "model": model.name,
        "model_type": plan.request.spec.model_type,
        "state_slots": sizes.state_slots,
        "kv_tokens": sizes.kv_tokens,
        "state_bytes_per_slot": geometry.slot_bytes,
        "conv_bytes_per_slot": geometry.conv_bytes,
        "ssm_bytes_per_slot": geometry.recurrent_bytes,
        "kv_bytes_per_token": geometry.row_bytes,
        "token_equiv": float(geometry.token_equiv) if has_both else None,
        "slots_per_request": sizes.slots_per_request,
        "max_running_requests": cap.value,
        "binding": cap.binds,
        "balanced_ratio": None if plan.balanced is None else float(plan.balanced),
        "ratio": None if plan.ratio is None else float(plan.ratio.value),
        "memory_after_weights": sizes.rest_bytes,
        "state_bytes": sizes.state_bytes,
        "draft_state_bytes": sizes.draft_bytes,
        "kv_bytes": sizes.kv_bytes,
        "page_size": sizes.page_size,
        "draft_tokens": sizes.draft_tokens,
        "concurrency": concurrency_document(plan.concurrency),
        "workload": workload_document(plan.workload),
        "boot_log": list(pools.boot_lines),
        "flags": {paste.engine: paste.flags for paste in flags},
        "notes": [*plan.notes, *(f"{p.engine}: {p.note}" for p in flags if p.note)],
        "provenance": _provenance(plan),
    }


def _provenance(plan: SizePlan) -> dict[str, Any]:
    """Say of each number how it was got: settings first, then what followed from them."""
    shown: dict[str, Value[object]] = {
        name: plan.resolved.values[name] for name in SHOWN_SETTINGS if name not in plan.values
    }
    if plan.ratio is not None:
        shown["ratio"] = Value(plan.ratio.value, plan.ratio.source, plan.ratio.why)
    shown |= dict(plan.values)
    return {
        name: {"value": _plain(value.value), "source": value.source.value, "why": value.why}
        for name, value in shown.items()
    }


def _plain(value: object) -> object:
    return float(value) if isinstance(value, Fraction) else to_json(value)


SHOWN_SETTINGS = (
    "mamba_full_memory_ratio",
    "max_mamba_cache_size",
    "mamba_radix_cache_strategy",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "speculative_num_draft_tokens",
    "max_running_requests",
    "max_total_tokens",
    "page_size",
    "tp",
    "pp",
)
