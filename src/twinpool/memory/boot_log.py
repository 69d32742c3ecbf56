"""Boot log: what both pools hold, in the line shapes of the reference engine.

Guides and scripts read these lines, so their quirks are kept: `GB` means GiB, sizes include the
padding and counts do not, the state line has no blank before `GB` and one at its end. Knows no
logger; it returns text.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from twinpool.memory.running_cap import RunningCap
from twinpool.memory.sizing import PoolSizes
from twinpool.units import GIB


def boot_lines(pools: PoolSizes, cap: RunningCap) -> tuple[str, ...]:
    """Return the lines that a server logs once its pools stand.

    Args:
        pools: Both pools.
        cap: The cap on running requests that is in force.

    Returns:
        The state line (left out without linear layers), the KV line (left out without
        full-attention layers), and the cap line where one of the pools decided the cap.
    """
    lines = [state_line(pools)] if pools.state_slots else []
    if pools.geometry.row_bytes:
        lines.append(kv_line(pools))
    warning = cap_line(pools, cap)
    if warning:
        lines.append(warning)
    return tuple(lines)


def state_line(pools: PoolSizes) -> str:
    """Return the line of the state pool, with its blank at the end.

    Draft states are not split in conv and recurrent parts on the device; the line splits their
    bytes in the proportion of one slot.
    """
    geometry = pools.geometry
    line = (
        f"Mamba Cache is allocated. max_mamba_cache_size: {pools.state_slots}, "
        f"conv_state size: {_gib(pools.padded_slots * geometry.conv_bytes)}GB, "
        f"ssm_state size: {_gib(pools.padded_slots * geometry.recurrent_bytes)}GB "
    )
    if pools.draft_bytes:
        slots = (pools.draft_requests + 1) * pools.draft_tokens
        line += (
            f"intermediate_ssm_state_cache size: {_gib(slots * geometry.recurrent_bytes)}GB "
            f"intermediate_conv_window_cache size: {_gib(slots * geometry.conv_bytes)}GB "
        )
    return line


def kv_line(pools: PoolSizes) -> str:
    """Return the line of the KV pool; latent attention has one size, the others K and V."""
    geometry = pools.geometry
    head = (
        f"KV Cache is allocated. dtype: torch.{_torch_name(geometry.kv_dtype.value)}, "
        f"#tokens: {pools.kv_tokens}, "
    )
    keys = _gib(pools.padded_tokens * geometry.key_bytes)
    if not geometry.value_bytes:
        return f"{head}KV size: {keys} GB"
    values = _gib(pools.padded_tokens * geometry.value_bytes)
    return f"{head}K size: {keys} GB, V size: {values} GB"


def cap_line(pools: PoolSizes, cap: RunningCap) -> str:
    """Return the warning for a cap that the pools decided, or an empty string."""
    if cap.binds == "state":
        return (
            f"max_running_requests is capped to {cap.value} by the mamba state cache "
            f"(max_mamba_cache_size={pools.state_slots}, {pools.slots_per_request} state slots "
            "per request). To raise it: increase --mamba-full-memory-ratio or "
            "--max-mamba-cache-size, or halve the state size with --mamba-ssm-dtype bfloat16."
        )
    if cap.binds == "kv":
        return (
            f"max_running_requests is capped to {cap.value} by the KV cache "
            f"({pools.kv_tokens} tokens, 2 per request). To raise it: give the KV pool more "
            "memory or decrease --mamba-full-memory-ratio."
        )
    return ""


def _gib(num_bytes: int) -> str:
    """Print bytes in GiB with two decimals, rounded exactly."""
    exact = Decimal(num_bytes) / Decimal(GIB)
    return str(exact.quantize(Decimal("0.01"), rounding=ROUND_HALF_EVEN))


def _torch_name(dtype: str) -> str:
    return {
        "fp8_e4m3": "float8_e4m3fn",
        "fp8_e5m2": "float8_e5m2",
        "fp4_e2m1": "float4_e2m1fn_x2",
    }.get(dtype, dtype)
