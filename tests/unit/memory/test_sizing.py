"""Sizing by ratio and by pinned slots: exact counts, and errors where nothing fits."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.sizing import (
    Budget,
    PoolSizes,
    balanced_ratio,
    parse_ratio,
    size_pools,
    split_by_ratio,
    split_pinned,
)
from twinpool.spec.geometry import Geometry
from twinpool.units import DType

ONE = Fraction(1)


def _geometry(slot: int = 1000, row: int = 10) -> Geometry:
    return Geometry(
        key_bytes=row // 2,
        value_bytes=row - row // 2,
        conv_bytes=slot // 4,
        recurrent_bytes=slot - slot // 4,
        kv_dtype=DType.BFLOAT16,
        conv_dtype=DType.BFLOAT16,
        state_dtype=DType.FLOAT32,
        tp=1,
        num_full_layers=1,
        num_linear_layers=3 if slot else 0,
    )


def _budget(rest: int = 20_000, **changes: Any) -> Budget:
    return Budget(rest_bytes=rest, **changes)


def _counts(pools: PoolSizes) -> tuple[int, int]:
    return pools.state_slots, pools.kv_tokens


def test_ratio_pays_for_the_padding_slot() -> None:
    assert _counts(split_by_ratio(_geometry(), _budget(), ONE)) == (9, 1000)


def test_one_byte_less_costs_a_slot_and_its_bytes_go_to_rows() -> None:
    assert _counts(split_by_ratio(_geometry(), _budget(19_998), ONE)) == (8, 1099)


def test_bytes_include_padding_and_counts_do_not() -> None:
    pools = split_by_ratio(_geometry(), _budget(page_size=16), ONE)
    assert (pools.state_slots, pools.padded_slots, pools.state_bytes) == (9, 10, 10_000)
    assert (pools.kv_tokens, pools.padded_tokens, pools.kv_bytes) == (992, 1008, 10_080)


def test_pinned_slots_leave_the_rest_to_rows() -> None:
    assert _counts(split_pinned(_geometry(), _budget(), 4)) == (4, 1500)


def test_rows_are_whole_pages() -> None:
    assert split_pinned(_geometry(), _budget(page_size=64), 4).kv_tokens == 1500 // 64 * 64


def test_bound_on_rows_is_kept_and_what_would_fit_is_known() -> None:
    pools = split_pinned(_geometry(), _budget(max_total_tokens=100, page_size=16), 4)
    assert (pools.kv_tokens, pools.fitting_tokens) == (96, 1488)


def test_bound_above_what_fits_changes_nothing() -> None:
    pools = split_pinned(_geometry(), _budget(max_total_tokens=10**6), 4)
    assert pools.kv_tokens == pools.fitting_tokens == 1500


def test_model_without_linear_layers_gets_rows_only() -> None:
    for pools in (
        split_by_ratio(_geometry(slot=0), _budget(), ONE),
        split_pinned(_geometry(slot=0), _budget(), 7),
    ):
        assert _counts(pools) == (0, 2000)
        assert (pools.padded_slots, pools.state_bytes, pools.draft_bytes) == (0, 0, 0)


def test_drafts_come_out_of_the_state_share() -> None:
    # Share 10000: minus (1 + 2) slots leaves 7000, each slot costs 1000 x (1 + 2/2).
    pools = split_by_ratio(_geometry(), _budget(draft_tokens=2, slots_per_request=2), ONE)
    assert pools.state_slots == 3
    # 3 slots serve one request, so (1 + 1) x 2 draft states and 4 slots: 8000 bytes.
    assert (pools.draft_requests, pools.draft_bytes, pools.kv_tokens) == (1, 4000, 1200)


def test_drafts_of_few_requests_leave_their_bytes_to_rows() -> None:
    many = split_by_ratio(_geometry(), _budget(60_000, draft_tokens=2), ONE)
    few = split_by_ratio(_geometry(), _budget(60_000, draft_tokens=2, max_running_requests=1), ONE)
    assert many.state_slots == few.state_slots == 9
    assert (many.draft_requests, few.draft_requests) == (9, 1)
    assert few.kv_tokens - many.kv_tokens == 8 * 2 * 1000 // 10


def test_pinned_slots_make_rows_pay_for_drafts() -> None:
    pools = split_pinned(_geometry(), _budget(draft_tokens=3, max_running_requests=2), 4)
    assert pools.draft_bytes == 9000
    assert pools.kv_tokens == (20_000 - 5000 - 9000) // 10


@pytest.mark.parametrize("clients", range(1, 12))
@pytest.mark.parametrize("slots", [1, 3, 4, 5])
@pytest.mark.parametrize("drafts", [1, 2, 4, 6, 7])
def test_budget_of_exactly_n_slots_with_drafts_gives_n(
    clients: int, slots: int, drafts: int
) -> None:
    wanted = clients * slots + 1
    share = Fraction(wanted) * (1 + Fraction(drafts, slots)) + 1 + drafts
    slot_bytes = 60_000
    rest = 2 * share * slot_bytes
    assert rest.denominator == 1
    budget = _budget(int(rest), slots_per_request=slots, draft_tokens=drafts)
    assert split_by_ratio(_geometry(slot_bytes), budget, ONE).state_slots == wanted


def test_size_pools_prefers_the_pin_to_the_ratio() -> None:
    pools = size_pools(_geometry(), _budget(), ratio=ONE, pinned_slots=4)
    assert pools.state_slots == 4


def test_cache_off_takes_one_slot_per_request_that_was_asked_for() -> None:
    budget = _budget(max_running_requests=6)
    assert size_pools(_geometry(), budget, ratio=ONE, prefix_cache=False).state_slots == 6
    pinned = size_pools(_geometry(), budget, ratio=ONE, pinned_slots=4, prefix_cache=False)
    assert pinned.state_slots == 4


def test_cache_off_without_a_wish_goes_by_ratio() -> None:
    assert size_pools(_geometry(), _budget(), ratio=ONE, prefix_cache=False).state_slots == 9


class TestErrors:
    """What cannot work says so with numbers and a hint."""

    def test_pin_larger_than_memory_names_the_largest_that_fits(self) -> None:
        with pytest.raises(CapacityError) as caught:
            split_pinned(_geometry(), _budget(), 19)
        assert "19 state slots" in caught.value.message
        assert "pin at most 18 slots" in caught.value.hint
        assert split_pinned(_geometry(), _budget(), 18).kv_tokens == 100

    def test_largest_pin_that_is_hinted_at_fits_with_pages(self) -> None:
        with pytest.raises(CapacityError, match="pin at most 17 slots"):
            split_pinned(_geometry(), _budget(page_size=128), 18)
        assert split_pinned(_geometry(), _budget(page_size=128), 17).kv_tokens == 128

    def test_pin_far_beyond_memory_is_an_error_too(self) -> None:
        with pytest.raises(CapacityError, match="leaves no KV page"):
            split_pinned(_geometry(), _budget(), 2**31 - 2)

    def test_drafts_larger_than_memory(self) -> None:
        with pytest.raises(CapacityError, match="with 6 draft states per request"):
            split_pinned(_geometry(), _budget(draft_tokens=6), 10)

    def test_state_share_without_a_slot(self) -> None:
        with pytest.raises(CapacityError) as caught:
            split_by_ratio(_geometry(), _budget(3_998), ONE)
        assert "less than 2 state slots of 1000 B" in caught.value.message
        assert "--mamba-full-memory-ratio" in caught.value.hint

    def test_memory_without_a_page(self) -> None:
        with pytest.raises(CapacityError, match="hold no KV page of 640 B"):
            split_pinned(_geometry(slot=0), _budget(600, page_size=64), 1)

    def test_ratio_that_leaves_no_page(self) -> None:
        with pytest.raises(CapacityError, match="leaves no KV page"):
            split_by_ratio(_geometry(), _budget(20_005), Fraction(10**6))

    def test_model_without_rows_gets_all_bytes_as_slots(self) -> None:
        pools = split_by_ratio(_geometry(row=0), _budget(), ONE)
        slot = pools.geometry.slot_bytes
        assert pools.state_bytes <= pools.rest_bytes < pools.state_bytes + slot
        assert (pools.kv_tokens, pools.kv_bytes) == (0, 0)

    def test_model_without_rows_refuses_a_pin_beyond_its_bytes(self) -> None:
        fitting = split_by_ratio(_geometry(row=0), _budget(), ONE).state_slots
        assert split_pinned(_geometry(row=0), _budget(), fitting).state_slots == fitting
        with pytest.raises(CapacityError, match=f"{fitting + 1} state slots") as caught:
            split_pinned(_geometry(row=0), _budget(), fitting + 1)
        assert f"at most {fitting} slots" in caught.value.hint

    def test_more_rows_than_an_index_can_name(self) -> None:
        with pytest.raises(ConfigError, match="32-bit index"):
            split_pinned(_geometry(row=1), _budget(2**33), 1)
        bounded = _budget(2**33, max_total_tokens=1000)
        assert split_pinned(_geometry(row=1), bounded, 1).kv_tokens == 1000

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("rest_bytes", 0),
            ("rest_bytes", -1),
            ("rest_bytes", 1.5),
            ("page_size", 0),
            ("slots_per_request", 0),
            ("draft_tokens", -1),
            ("max_running_requests", 0),
            ("max_total_tokens", 0),
            ("max_total_tokens", True),
        ],
    )
    def test_budget_refuses_what_is_out_of_range(self, field: str, value: object) -> None:
        with pytest.raises(ConfigError):
            Budget(**{"rest_bytes": 1000, field: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize("slots", [0, -1])
    def test_pin_of_nothing(self, slots: int) -> None:
        with pytest.raises(ConfigError, match="--max-mamba-cache-size"):
            split_pinned(_geometry(), _budget(), slots)


class TestRatio:
    """A ratio is what its text says, to the last digit."""

    @pytest.mark.parametrize(
        ("given", "exact"),
        [
            ("0.9", Fraction(9, 10)),
            (" 2 ", Fraction(2)),
            (".25", Fraction(1, 4)),
            (0.9, Fraction(9, 10)),
            (3, Fraction(3)),
            (Decimal("0.1"), Fraction(1, 10)),
            (Fraction(1, 3), Fraction(1, 3)),
        ],
    )
    def test_is_exact(self, given: Any, exact: Fraction) -> None:
        assert parse_ratio(given) == exact

    @pytest.mark.parametrize(
        "given",
        [
            *["0", "0.000", "-1", "nan", "inf", "-inf", "", "1e9", "9/10", "0x2", "1_000", "٣"],
            *["9" * 5000, float("nan"), float("inf"), -0.5, 0.0, Fraction(-1), Fraction(0)],
        ],
    )
    def test_refuses_what_is_no_positive_number(self, given: Any) -> None:
        with pytest.raises(ConfigError, match="ratio of state bytes"):
            parse_ratio(given)

    def test_split_refuses_a_ratio_of_nothing(self) -> None:
        with pytest.raises(ConfigError, match="ratio of state bytes"):
            split_by_ratio(_geometry(), _budget(), Fraction(0))


def test_balanced_ratio_prices_drafts_like_slots() -> None:
    assert balanced_ratio(Fraction(4000), 1000, slots_per_request=4, draft_tokens=2) == Fraction(24)
    with pytest.raises(ConfigError, match="average context"):
        balanced_ratio(Fraction(4000), 0, slots_per_request=4)
