"""What the front is told of a loaded engine: limits, defaults, effective values and their sources.

Gathers; decides nothing and keeps nothing.
"""

from __future__ import annotations

from pathlib import Path

from twinpool.engine import default_model, protocol
from twinpool.engine.generation_config import read_generation_defaults
from twinpool.models.decoder import Decoder
from twinpool.settings.pools import PoolPlan
from twinpool.settings.resolve import Resolved, to_json
from twinpool.spec.layer import FullSpec


def engine_facts(
    folder: Path,
    resolved: Resolved,
    plan: PoolPlan,
    model: Decoder,
    *,
    eos_token_ids: tuple[int, ...],
    has_tokenizer: bool,
) -> protocol.EngineFacts:
    """Gather what the front must know.

    Args:
        folder: The checkpoint.
        resolved: The settings.
        plan: The pools.
        model: The loaded model.
        eos_token_ids: Its end tokens.
        has_tokenizer: False with `--skip-tokenizer-init`.
    """
    return protocol.EngineFacts(
        model=resolved.model.model_path or default_model.NAME,
        architecture=plan.spec.architecture,
        context_tokens=plan.spec.context_length,
        # The last sampled token never needs a row.
        max_request_tokens=min(plan.spec.context_length, _most_rows(plan) + 1),
        max_running_requests=plan.cap.value,
        vocab_size=plan.spec.vocab_size,
        eos_token_ids=eos_token_ids,
        tokenizer_dir=str(folder) if has_tokenizer else None,
        generation=read_generation_defaults(folder),
        settings=_effective(resolved, plan, model),
        model_facts=_model_facts(plan, model),
    )


def _effective(
    resolved: Resolved, plan: PoolPlan, model: Decoder
) -> tuple[protocol.EffectiveValue, ...]:
    rows = {str(row["name"]): row for row in resolved.rows()}
    for name, value in plan.values.items():
        rows[name] = {"name": name, "value": to_json(value.value), "source": value.source.value}
        rows[name]["why"] = value.why
    for choice in model.ops.choices:
        refused = "; ".join(f"{other} refused: {reason}" for other, reason in choice.refused)
        rows[f"kernel_{choice.op}"] = {
            "name": f"kernel_{choice.op}",
            "value": choice.implementation,
            "source": "derived",
            "why": refused,
        }
    return tuple(
        protocol.EffectiveValue(
            name=str(row["name"]),
            value=_plain(row["value"]),
            source=str(row["source"]),
            why=str(row["why"]),
        )
        for row in rows.values()
    )


def _plain(value: object) -> int | float | str | bool | None:
    if value is None or isinstance(value, int | float | str):
        return value
    return str(value)


def _model_facts(plan: PoolPlan, model: Decoder) -> dict[str, int | float | str | bool]:
    spec, geometry = plan.spec, plan.geometry
    num_full = sum(isinstance(layer, FullSpec) for layer in spec.layers)
    return {
        "model_type": spec.model_type,
        "num_layers": len(spec.layers),
        "num_full_attention_layers": num_full,
        "num_linear_attention_layers": len(spec.layers) - num_full,
        "hidden_size": spec.hidden_size,
        "dtype": spec.dtype.value,
        "kv_dtype": geometry.kv_dtype.value,
        "state_dtype": geometry.state_dtype.value,
        "conv_dtype": geometry.conv_dtype.value,
        "weight_bytes": model.weight_bytes,
        "row_bytes": geometry.row_bytes,
        "slot_bytes": geometry.slot_bytes,
        "state_slots": plan.num_slots,
        "kv_tokens": plan.num_rows,
    }


def _most_rows(plan: PoolPlan) -> int:
    """Return the rows that one request can have: beside two states where they share memory."""
    if plan.arena is None:
        return plan.sizes.kv_tokens
    return plan.arena.num_rows - 2 * plan.arena.rows_per_slot
