"""Presets of engines: what they set, what beats them, and what a server refuses of them."""

from __future__ import annotations

import pytest

from twinpool.errors import ConfigError
from twinpool.memory.running_cap import SlotStrategy
from twinpool.settings.engines import ENGINES, preset_of
from twinpool.settings.memory import MemoryMode
from twinpool.settings.resolve import Machine, resolve
from twinpool.settings.values import Source

# Strategy, eviction, order, memory, page.
PRESETS = """
twinpool | direct | value | least-work | elastic | 1
twinpool-static | direct | value | least-work | static | 1
sglang | extra_buffer | lru | fcfs | static | 1
sglang-lpm | extra_buffer | lru | lpm | static | 1
vllm | align | block-lru | fcfs | equal-pages | 16
marconi | marconi | marconi | fcfs | one-budget | 1
"""


def test_presets() -> None:
    lines = []
    for engine in ENGINES:
        firm, fallback = preset_of(engine)
        resolved = resolve({}, preset=firm, assumed=fallback)
        memory = resolved.memory
        lines.append(
            f"{engine} | {memory.mamba_radix_cache_strategy} | {memory.radix_eviction_policy} | "
            f"{resolved.scheduling.schedule_policy} | {memory.memory_mode} | {memory.page_size}"
        )
    assert lines == PRESETS.strip().splitlines()


def test_what_a_preset_sets_says_so() -> None:
    value = resolve({}, preset=preset_of("vllm")[0]).values["memory_mode"]
    assert (value.value, value.source) == (MemoryMode.EQUAL_PAGES, Source.ASSUMED)
    assert value.why == "as vllm does"


def test_flags_and_files_beat_a_preset_and_a_preset_the_models_defaults() -> None:
    resolved = resolve(
        {"radix_eviction_policy": "joint-lru"},
        {"mamba_radix_cache_strategy": "extra_buffer_lazy", "mamba_full_memory_ratio": 0.25},
        file={"page_size": 64},
        preset=preset_of("vllm")[0],
    )
    memory = resolved.memory
    assert memory.radix_eviction_policy == "joint-lru"
    assert memory.page_size == 64
    assert memory.mamba_radix_cache_strategy is SlotStrategy.ALIGN
    # What the preset leaves open is the model's to say.
    assert float(memory.mamba_full_memory_ratio) == 0.25


def test_the_defaults_of_a_model_are_sglangs_own() -> None:
    firm, fallback = preset_of("sglang")
    defaults = {"mamba_radix_cache_strategy": "extra_buffer_lazy"}
    resolved = resolve({}, defaults, preset=firm, assumed=fallback)
    assert resolved.memory.mamba_radix_cache_strategy is SlotStrategy.EXTRA_BUFFER_LAZY


def test_a_split_that_is_given_makes_twinpool_static() -> None:
    resolved = resolve({"max_mamba_cache_size": 9}, preset=preset_of("twinpool")[0])
    assert resolved.memory.memory_mode is MemoryMode.STATIC
    assert resolved.values["memory_mode"].why == "--max-mamba-cache-size is given"


def test_unknown_engines_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="tgi") as error:
        preset_of("tgi")
    assert "sglang-lpm" in str(error.value.hint)


@pytest.mark.parametrize("mode", ["equal-pages", "one-budget"])
def test_a_server_refuses_memory_that_only_a_replay_shares(mode: str) -> None:
    machine = Machine(total_bytes=2**31, free_bytes=2**30)
    with pytest.raises(ConfigError, match=f"--memory {mode} is for replays") as error:
        resolve({"memory_mode": mode}, machine=machine)
    assert "--memory static" in str(error.value.hint)
    assert resolve({"memory_mode": mode}).memory.memory_mode.is_shared


def test_a_server_takes_the_policies_of_other_engines() -> None:
    machine = Machine(total_bytes=2**31, free_bytes=2**30)
    flags = {"mamba_radix_cache_strategy": "marconi", "radix_eviction_policy": "marconi"}
    assert resolve(flags, machine=machine).log_lines == ()


def test_a_split_has_no_effect_on_one_memory_and_says_so() -> None:
    resolved = resolve({"memory_mode": "one-budget", "max_mamba_cache_size": 9})
    assert resolved.log_lines == (
        "max_mamba_cache_size has no effect: --memory one-budget has no split",
    )


def test_draft_states_have_no_room_on_one_memory() -> None:
    with pytest.raises(ConfigError, match="no room for draft states"):
        resolve({"memory_mode": "equal-pages", "speculative_num_draft_tokens": 4})
