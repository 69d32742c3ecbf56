"""Settings, a model and measured memory give both pools, with the provenance of every number."""

from __future__ import annotations

from typing import Any

import pytest

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.sizing import Budget, split_by_ratio
from twinpool.settings.pools import PoolPlan, arena_line, plan_pools, pool_bytes
from twinpool.settings.resolve import Machine, resolve
from twinpool.settings.values import Source, Value
from twinpool.spec.model import ModelSpec, parse_model_spec
from twinpool.units import DType

MACHINE = Machine(total_bytes=16 * 10**9, free_bytes=10 * 10**9)
REST = Value(256 * 2**20, Source.FLAG)


def _spec(**changes: Any) -> ModelSpec:
    return parse_model_spec(
        {
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 4,
            "linear_num_value_heads": 16,
            "head_dim": 64,
            "dtype": "bfloat16",
            "max_position_embeddings": 4096,
            **changes,
        }
    )


def _plan(spec: ModelSpec | None = None, **flags: Any) -> PoolPlan:
    return plan_pools(resolve(flags), spec or _spec(), REST)


class TestPoolBytes:
    """How much both pools may take."""

    def test_pool_memory_is_taken_as_it_is(self) -> None:
        rest = pool_bytes(resolve({"pool_memory": "1GB"}), MACHINE, 2 * 10**9)
        assert rest == Value(10**9, Source.FLAG)

    def test_pool_memory_beyond_what_the_weights_leave_is_refused(self) -> None:
        with pytest.raises(CapacityError, match="--pool-memory asks for"):
            pool_bytes(resolve({"pool_memory": "3GB"}), MACHINE, 2 * 10**9)

    def test_fraction_is_of_what_was_free_before_loading(self) -> None:
        # 6 of 10 GB are static; the weights took 2 of them.
        rest = pool_bytes(resolve({"mem_fraction_static": "0.6"}), MACHINE, 8 * 10**9)
        assert rest.value == 4 * 10**9
        assert rest.source is Source.MEASURED
        assert "0.6 of the memory free before loading" in rest.why

    def test_weights_that_take_all_name_the_least_fraction(self) -> None:
        with pytest.raises(CapacityError) as caught:
            pool_bytes(resolve({"mem_fraction_static": "0.6"}), MACHINE, 3 * 10**9)
        assert "leaves nothing for the pools at --mem-fraction-static 0.6" in caught.value.message
        assert "above 0.7" in caught.value.hint
        above = resolve({"mem_fraction_static": "0.701"})
        assert pool_bytes(above, MACHINE, 3 * 10**9).value == 10_000_000


class TestPlan:
    """Both pools for one model."""

    def test_default_plan_is_one_memory(self) -> None:
        plan = _plan()
        assert plan.arena is not None
        assert plan.num_slots == plan.arena.num_frames
        assert plan.num_rows == plan.arena.num_frames * plan.arena.rows_per_slot
        # A frame holds a state, and with the sink all of them are within the bytes.
        row, slot = plan.geometry.row_bytes, plan.geometry.slot_bytes
        assert plan.arena.rows_per_slot * row >= slot
        assert (plan.num_rows + plan.arena.rows_per_slot) * row <= REST.value
        assert plan.log_lines == ()
        (line,) = plan.boot_lines
        assert line == arena_line(plan.arena, plan.geometry)
        assert plan.values["arena_rows"].value == plan.num_rows
        assert "max_mamba_cache_size" not in plan.values
        assert "max_total_tokens" not in plan.values

    def test_one_memory_too_small_for_three_states_is_refused(self) -> None:
        slot = _plan().geometry.slot_bytes
        with pytest.raises(CapacityError, match="and 3 are needed"):
            plan_pools(resolve({}), _spec(), Value(3 * slot, Source.FLAG))
        # A bound that leaves too few rows is what the hint names.
        with pytest.raises(CapacityError, match="one memory of 99 rows") as caught:
            _plan(max_total_tokens=99)
        assert "--max-total-tokens" in caught.value.hint

    def test_a_split_that_nobody_asked_for_refuses_no_memory(self) -> None:
        # At that ratio not even two slots would be had.
        rest = Value(5 * _plan().geometry.slot_bytes, Source.FLAG)
        plan = plan_pools(resolve({}, {"mamba_full_memory_ratio": "0.05"}), _spec(), rest)
        assert plan.num_slots >= 3

    def test_bound_on_one_memory_counts_states_as_rows(self) -> None:
        whole = _plan()
        bound = whole.num_rows // 2
        plan = _plan(max_total_tokens=bound)
        assert plan.num_rows < bound < whole.num_rows
        assert plan.log_lines == ()
        beyond = _plan(max_total_tokens=10**9)
        assert beyond.num_rows == whole.num_rows
        assert beyond.log_lines == (
            "max_total_tokens has no effect: it is 1000000000, and the one memory has "
            f"{whole.num_rows} rows",
        )

    def test_static_plan_is_the_ratio_split(self) -> None:
        plan = _plan(memory_mode="static")
        ratio = resolve({}).memory.mamba_full_memory_ratio
        assert plan.sizes == split_by_ratio(plan.geometry, Budget(rest_bytes=REST.value), ratio)
        assert plan.log_lines == ()
        assert plan.boot_lines[0].startswith("Mamba Cache is allocated.")

    def test_effective_values_carry_their_provenance(self) -> None:
        plan = _plan(max_running_requests=10**6, mamba_radix_cache_strategy="extra_buffer")
        slots = plan.sizes.state_slots
        assert plan.values["max_mamba_cache_size"] == Value(
            slots, Source.DERIVED, "mamba_full_memory_ratio"
        )
        assert plan.values["max_running_requests"] == Value(
            slots // 5, Source.DERIVED, f"{slots} state slots, 5 per request"
        )
        assert plan.values["pool_bytes"] is REST
        assert plan.values["slot_bytes"].value == plan.geometry.slot_bytes

    def test_what_was_asked_for_and_fits_keeps_its_source(self) -> None:
        plan = _plan(max_running_requests=3, max_mamba_cache_size=9, max_total_tokens=500)
        for name, value in (
            ("max_running_requests", 3),
            ("max_mamba_cache_size", 9),
            ("max_total_tokens", 500),
        ):
            assert plan.values[name] == Value(value, Source.FLAG)
        assert plan.log_lines == ()

    def test_bound_on_rows_that_cannot_be_reached_leaves_a_line(self) -> None:
        plan = _plan(memory_mode="static", max_total_tokens=10**9)
        tokens = plan.sizes.kv_tokens
        assert plan.log_lines == (
            f"max_total_tokens is {tokens} instead of 1000000000: the KV pool has no room for more",
        )
        assert plan.values["max_total_tokens"].source is Source.DERIVED

    def test_cache_off_gives_a_slot_per_request(self) -> None:
        plan = _plan(memory_mode="static", disable_radix_cache=True, max_running_requests=7)
        assert plan.sizes.state_slots == plan.cap.value == 7
        assert "one per running request" in plan.values["max_mamba_cache_size"].why

    @pytest.mark.parametrize(
        ("flags", "slots"),
        [
            ({}, 1),
            ({"mamba_radix_cache_strategy": "extra_buffer"}, 5),
            ({"mamba_radix_cache_strategy": "extra_buffer", "disable_overlap_schedule": True}, 4),
            ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 4),
            ({"mamba_radix_cache_strategy": "no_buffer"}, 3),
            ({"mamba_radix_cache_strategy": "extra_buffer", "disable_radix_cache": True}, 1),
        ],
    )
    def test_strategy_decides_slots_per_request(self, flags: dict[str, Any], slots: int) -> None:
        assert _plan(**flags).sizes.slots_per_request == slots

    def test_served_dtype_sets_rows_and_conv_states(self) -> None:
        plan = _plan(dtype="float32")
        assert plan.spec.dtype is plan.geometry.kv_dtype is plan.geometry.conv_dtype
        assert plan.geometry.kv_dtype is DType.FLOAT32
        assert plan.geometry.row_bytes == 2 * _plan().geometry.row_bytes

    def test_dtypes_of_rows_and_states_can_be_set_alone(self) -> None:
        plan = _plan(kv_cache_dtype="float32", mamba_ssm_dtype="bfloat16")
        assert plan.geometry.kv_dtype is DType.FLOAT32
        assert plan.geometry.state_dtype is DType.BFLOAT16
        assert plan.spec.dtype is DType.BFLOAT16

    def test_draft_tokens_take_room_of_their_own(self) -> None:
        plan = _plan(speculative_num_draft_tokens=2, max_running_requests=2)
        assert plan.sizes.draft_bytes == 3 * 2 * plan.geometry.slot_bytes
        assert "intermediate_ssm_state_cache" in plan.boot_lines[0]

    def test_ranks_that_do_not_divide_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="does not split over 3 ranks"):
            _plan(tp=3)

    def test_too_few_pinned_slots_for_one_request_is_an_error(self) -> None:
        with pytest.raises(CapacityError, match="one request reserves 5"):
            _plan(max_mamba_cache_size=4, mamba_radix_cache_strategy="extra_buffer")


class TestPlainTransformer:
    """A model without linear attention has no state pool."""

    SPEC = _spec(full_attention_interval=1)

    def test_all_bytes_are_rows(self) -> None:
        plan = _plan(self.SPEC)
        assert plan.sizes.state_slots == 0
        assert len(plan.boot_lines) == 1
        assert plan.values["max_mamba_cache_size"].value == 0
        assert plan.sizes.kv_tokens == REST.value // plan.geometry.row_bytes

    def test_explicit_strategy_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="qwen3_5_text has none"):
            _plan(self.SPEC, mamba_radix_cache_strategy="extra_buffer")

    def test_explicit_state_settings_leave_a_line_each(self) -> None:
        plan = _plan(self.SPEC, max_mamba_cache_size=5, mamba_ssm_dtype="bfloat16")
        assert [line.split(" ", 1)[0] for line in plan.log_lines] == [
            "max_mamba_cache_size",
            "mamba_ssm_dtype",
        ]
