"""`twinpool explain` reads what `twinpool serve` logs, with nothing left to assume."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinpool.memory.boots import read_boot_log
from twinpool.settings.log_settings import settings_line
from twinpool.settings.pools import plan_pools
from twinpool.settings.resolve import resolve
from twinpool.settings.values import Source, Value
from twinpool.spec.model import read_model_spec

CONFIG = Path(__file__).parents[1] / "data" / "configs" / "Qwen--Qwen3.5-27B.json"


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"page_size": 16, "max_running_requests": 7},
        {"mamba_radix_cache_strategy": "extra_buffer_lazy", "max_mamba_cache_size": 64},
    ],
)
def test_a_boot_log_of_ours_says_everything(flags: dict[str, object]) -> None:
    resolved = resolve(flags)
    plan = plan_pools(resolved, read_model_spec(CONFIG), Value(40 * 2**30, Source.FLAG))
    lines = (*resolved.log_lines, settings_line(resolved), *plan.boot_lines)
    boot = read_boot_log(lines, "serve.log").boot
    assert boot.settings["page_size"] == str(plan.sizes.page_size)
    strategy = resolved.memory.mamba_radix_cache_strategy
    assert boot.settings["mamba_radix_cache_strategy"] == strategy.value
    assert boot.settings["tp_size"] == "1"
    (rank,) = boot.ranks
    assert rank.state is not None
    assert rank.state.slots == plan.sizes.state_slots
    assert rank.kv.tokens == plan.sizes.kv_tokens
