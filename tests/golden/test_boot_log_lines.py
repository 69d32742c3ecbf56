"""The boot log keeps the reference engine's line shapes, quirks and all."""

from __future__ import annotations

import dataclasses
import re

import pytest

from twinpool.memory.boot_log import boot_lines, kv_line, state_line
from twinpool.memory.running_cap import running_cap
from twinpool.memory.sizing import Budget, split_pinned
from twinpool.spec.geometry import Geometry
from twinpool.units import DType

GQA = Geometry(
    key_bytes=12288,
    value_bytes=12288,
    conv_bytes=1769472,
    recurrent_bytes=75497472,
    kv_dtype=DType.BFLOAT16,
    conv_dtype=DType.BFLOAT16,
    state_dtype=DType.FLOAT32,
    tp=1,
    num_full_layers=12,
    num_linear_layers=36,
)
BUDGET = Budget(rest_bytes=16 * 2**30, page_size=16, slots_per_request=5)


def test_lines_of_a_hybrid_model() -> None:
    pools = split_pinned(GQA, BUDGET, 100)
    assert boot_lines(pools, running_cap(pools, 64)) == (
        "Mamba Cache is allocated. max_mamba_cache_size: 100, conv_state size: 0.17GB, "
        "ssm_state size: 7.10GB ",
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 381504, K size: 4.37 GB, "
        "V size: 4.37 GB",
        "max_running_requests is capped to 20 by the mamba state cache "
        "(max_mamba_cache_size=100, 5 state slots per request). To raise it: increase "
        "--mamba-full-memory-ratio or --max-mamba-cache-size, or halve the state size with "
        "--mamba-ssm-dtype bfloat16.",
    )


def test_cap_line_is_left_out_when_the_wish_is_met() -> None:
    pools = split_pinned(GQA, BUDGET, 100)
    assert len(boot_lines(pools, running_cap(pools, 20))) == 2


def test_cap_line_names_the_kv_pool_when_that_binds() -> None:
    pools = split_pinned(GQA, dataclasses.replace(BUDGET, max_total_tokens=32), 100)
    assert boot_lines(pools, running_cap(pools, 20))[2].startswith(
        "max_running_requests is capped to 16 by the KV cache (32 tokens, 2 per request)."
    )


def test_latent_attention_has_one_size() -> None:
    latent = dataclasses.replace(GQA, key_bytes=5995, value_bytes=0, kv_dtype=DType.FP8)
    line = kv_line(split_pinned(latent, BUDGET, 1))
    assert re.fullmatch(
        r"KV Cache is allocated\. dtype: torch\.float8_e4m3fn, #tokens: \d+, "
        r"KV size: \d+\.\d\d GB",
        line,
    )


def test_draft_states_follow_on_the_state_line() -> None:
    drafts = dataclasses.replace(BUDGET, draft_tokens=4, max_running_requests=8)
    line = state_line(split_pinned(GQA, drafts, 100))
    # (8 + 1) x 4 draft states, split like one slot.
    assert line == (
        "Mamba Cache is allocated. max_mamba_cache_size: 100, conv_state size: 0.17GB, "
        "ssm_state size: 7.10GB intermediate_ssm_state_cache size: 2.53GB "
        "intermediate_conv_window_cache size: 0.06GB "
    )


def test_plain_transformer_has_no_state_line() -> None:
    plain = dataclasses.replace(GQA, conv_bytes=0, recurrent_bytes=0, num_linear_layers=0)
    pools = split_pinned(plain, BUDGET, 1)
    lines = boot_lines(pools, running_cap(pools, 4))
    assert [line.split(" ", 1)[0] for line in lines] == ["KV"]


@pytest.mark.parametrize("slots", [1, 7, 100])
def test_sizes_include_padding_and_counts_do_not(slots: int) -> None:
    """The line can be turned back into bytes per slot by dividing by the count plus one."""
    whole = dataclasses.replace(GQA, conv_bytes=0, recurrent_bytes=2**30)
    pools = split_pinned(whole, dataclasses.replace(BUDGET, rest_bytes=2**40), slots)
    match = re.search(
        r"max_mamba_cache_size: (\d+), .* ssm_state size: (\d+\.\d\d)GB $", state_line(pools)
    )
    assert match is not None
    assert (int(match[1]), float(match[2])) == (slots, slots + 1)
