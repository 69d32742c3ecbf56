"""What SGLang can do with a plan: the slot strategy it allows for a model, and names of dtypes.

Knows no other flag.

Source: SGLang 0.5.23, the resolution of its mamba arguments (`arg_groups/overrides.py`,
`mamba_hook.py`) and its model registry.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.errors import ConfigError
from twinpool.memory.running_cap import REFERENCE_STRATEGIES, SlotStrategy
from twinpool.settings.size_plan import SizePlan, with_strategy
from twinpool.units import DType

ROWS = {
    DType.BFLOAT16: "bfloat16",
    DType.FP8: "fp8_e4m3",
    DType.FP8_E5M2: "fp8_e5m2",
    DType.MXFP8: "mxfp8",
    # `fp4_mx_block16` takes as many bytes.
    DType.FP4: "nvfp4",
}
_UNKNOWN = frozenset(
    {
        "BambaForCausalLM",
        "JambaForCausalLM",
        "MiniMaxForCausalLM",
        "MiniMaxM1ForCausalLM",
        "MiniMaxText01ForCausalLM",
        "OlmoHybridForCausalLM",
        "Zamba2ForCausalLM",
    }
)
# Checkpoints at any token alone: its buffers know no conv without a recurrent state.
_EXACT = frozenset({"Lfm2ForCausalLM", "Lfm2MoeForCausalLM"})
# Outside its checkpoint tree: three slots are reserved all the same, and it takes no strategy.
_WITHOUT_STRATEGY = frozenset(
    {
        "FalconMambaForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
    }
)
_SNAPSHOT_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A plan that the engine can run.

    Attributes:
        plan: The plan, made anew where the engine has no such strategy.
        strategy: What to say with `--mamba-radix-cache-strategy`; None: nothing.
        notes: What was changed.
        has_overlap_flag: False when overlap off is only how the plan was reckoned.
    """

    plan: SizePlan
    strategy: SlotStrategy | None = None
    notes: tuple[str, ...] = ()
    has_overlap_flag: bool = True


def fitted(plan: SizePlan) -> Fitted:
    """Plan for what the engine can do with a model.

    Args:
        plan: What `plan_size` found.

    Raises:
        ConfigError: If it does not know the model, or not with these flags.
        CapacityError: If with its strategy no request could run.
    """
    architecture = plan.request.spec.architecture
    if architecture in _UNKNOWN:
        raise ConfigError(f"SGLang 0.5.23 has no {architecture}")
    if not plan.pools.geometry.slot_bytes or plan.resolved.memory.disable_radix_cache:
        return Fitted(plan=plan)
    asked = plan.resolved.memory.mamba_radix_cache_strategy
    strategy = _strategy(plan, asked)
    notes = []
    if strategy is not asked:
        plan = with_strategy(plan, strategy)
        slots = plan.pools.sizes.slots_per_request
        why = (
            f"there is no `{asked.value}`"
            if asked not in REFERENCE_STRATEGIES
            else f"{architecture} cannot do {asked.value}"
        )
        notes.append(f"planned with {strategy.value}, {slots} slots per request: {why}")
    if architecture in _WITHOUT_STRATEGY:
        was_off = plan.request.flags.get("disable_overlap_schedule")
        return Fitted(plan=plan, notes=tuple(notes), has_overlap_flag=bool(was_off))
    page = plan.resolved.memory.page_size
    if strategy is not SlotStrategy.NO_BUFFER and max(page, _SNAPSHOT_TOKENS) % min(
        page, _SNAPSHOT_TOKENS
    ):
        raise ConfigError(
            f"it takes states every {_SNAPSHOT_TOKENS} tokens, which does not go with a page of "
            f"{page}"
        )
    return Fitted(plan=plan, strategy=strategy, notes=tuple(notes))


def _strategy(plan: SizePlan, asked: SlotStrategy) -> SlotStrategy:
    """Return the strategy asked for where the model can do it, else the cheapest that it can."""
    if plan.request.spec.architecture in _EXACT | _WITHOUT_STRATEGY:
        return SlotStrategy.NO_BUFFER
    if asked in REFERENCE_STRATEGIES:
        return asked
    overlaps = not plan.resolved.scheduling.disable_overlap_schedule
    return SlotStrategy.EXTRA_BUFFER_LAZY if overlaps else SlotStrategy.EXTRA_BUFFER
