"""Equal pages and one budget: sizes as vLLM cuts them, and what shares them."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import CapacityError, ConfigError, OutOfRows
from twinpool.memory.allocator import RowAllocator, SlotAllocator
from twinpool.memory.equal_pages import LayerBytes, equal_pages, one_budget
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.supply import Supply

# Qwen3.5-4B in bfloat16 with float32 states, one rank: 8 layers of 4 KV heads of 256, and 24 of
# 32 heads of 128 x 128 with a conv of 4 taps over 8192 channels.
QWEN_4B = LayerBytes(
    row_bytes=8 * 4096,
    slot_bytes=24 * (32 * 128 * 128 * 4 + 8192 * 3 * 2),
    num_full_layers=8,
    num_linear_layers=24,
)
# GLM-5.3-Flash on two ranks, rows in fp8.
GLM_FLASH = LayerBytes(
    row_bytes=5_995,
    slot_bytes=73_809_920,
    num_full_layers=11,
    num_linear_layers=34,
    has_latent_rows=True,
)


def test_a_block_grows_to_the_tokens_that_vllm_logs():
    """Source: github.com/vllm-project/vllm/issues/40696: 528 tokens for this model."""
    assert equal_pages(QWEN_4B, 8 * 2**30, block_tokens=16).page_tokens == 528


def test_pages_of_a_model_whose_groups_do_not_come_out_even():
    shared = equal_pages(GLM_FLASH, 67_052_172_800, block_tokens=16)
    assert shared.page_tokens == 4096
    # 34 linear layers make four groups of 11, ten of their places empty.
    assert (shared.budget.page_cost, shared.budget.slot_cost) == (1, 4)
    assert shared.budget.total == 67_052_172_800 // (4096 * 5_995) == 2730
    assert shared.max_tokens == (2730 - 8) * 4096
    assert shared.max_slots == (2730 - 1) // 4


def test_a_block_that_is_large_enough_stays():
    assert equal_pages(QWEN_4B, 8 * 2**30, block_tokens=1024).page_tokens == 1024
    # To the next multiple of what the kernels take, at least.
    assert equal_pages(QWEN_4B, 8 * 2**30, block_tokens=1000).page_tokens == 1008


@pytest.mark.parametrize(
    ("full", "linear", "costs"), [(12, 13, (1, 1)), (10, 15, (1, 2)), (20, 10, (2, 1))]
)
def test_layers_of_both_kinds_are_put_into_groups_of_one_size(full, linear, costs):
    layers = LayerBytes(
        row_bytes=full * 1024,
        slot_bytes=linear * 2**20,
        num_full_layers=full,
        num_linear_layers=linear,
    )
    budget = equal_pages(layers, 2**33, block_tokens=16).budget
    assert (budget.page_cost, budget.slot_cost) == costs
    # A page holds the block of a group, and a state of a group fits into it.
    page_bytes = 2**33 // budget.total
    assert page_bytes >= 2**20 * min(full, linear)


@pytest.mark.parametrize("missing", ["num_full_layers", "num_linear_layers"])
def test_equal_pages_need_both_kinds_of_layers(missing):
    layers = {
        "row_bytes": 1024,
        "slot_bytes": 2**20,
        "num_full_layers": 4,
        "num_linear_layers": 12,
        missing: 0,
    }
    with pytest.raises(ConfigError, match="both full and linear"):
        equal_pages(LayerBytes(**layers), 2**30, block_tokens=16)


def test_memory_for_less_than_one_request_is_refused_with_its_numbers():
    with pytest.raises(CapacityError, match="one budget of 8"):
        equal_pages(GLM_FLASH, 8 * 4096 * 5_995, block_tokens=16)


def test_one_budget_counts_bytes_and_rounds_nothing():
    shared = one_budget(GLM_FLASH, 10**9, page_tokens=1)
    assert shared.budget == OneBudget(total=10**9, page_cost=5_995, slot_cost=73_809_920)
    assert shared.max_tokens == (10**9 - 2 * 73_809_920) // 5_995
    with pytest.raises(ConfigError, match="writes none"):
        one_budget(
            LayerBytes(row_bytes=0, slot_bytes=9, num_full_layers=0, num_linear_layers=3),
            10**9,
            page_tokens=1,
        )


@pytest.mark.parametrize(("page_cost", "slot_cost"), [(0, 1), (1, -1)])
def test_costs_that_make_no_sense_are_refused(page_cost, slot_cost):
    with pytest.raises(ConfigError):
        OneBudget(total=10, page_cost=page_cost, slot_cost=slot_cost)


def supply(budget: OneBudget | None) -> tuple[RowAllocator, SlotAllocator, Supply]:
    rows, slots = RowAllocator(40, page_size=4), SlotAllocator(5)
    return rows, slots, Supply(rows, slots, budget)


def test_pools_of_their_own_know_nothing_of_each_other():
    _, slots, both = supply(None)
    slots.allocate()
    assert (both.free_rows, both.free_slots) == (40, 4)
    assert (both.rows_with(8, 3), both.slots_with(8, 3)) == (48, 7)
    assert both.rows_with(8, -2) == 48
    assert len(both.take_rows(5)) % 16 == 0


def test_rows_and_slots_of_one_budget_displace_each_other():
    rows, slots, both = supply(OneBudget(total=10, page_cost=1, slot_cost=2))
    assert (both.free_rows, both.free_slots) == (40, 5)
    taken = both.take_rows(5)
    # Whole pages and no more: what completes a run would not be paid for.
    assert len(taken) == 8
    assert (both.free_rows, both.free_slots) == (32, 4)
    slots.allocate()
    assert (both.free_rows, both.free_slots) == (24, 3)
    assert both.rows_with(0, -2) == 8
    # What eviction would free counts with what it costs.
    assert both.rows_with(4, 1) == 24 + 4 + 8
    rows.free(np.sort(taken))
    with pytest.raises(OutOfRows):
        both.take_rows(41)
