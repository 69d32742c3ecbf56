"""Bytes out of a log: the published boot to every digit, intervals that hold, other splits."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.boot_reader import KvLine, PrintedSize, StateLine
from twinpool.memory.boots import RankPools, read_boot_log
from twinpool.memory.recover import Interval, Reserve, mismatches, recover, split_again
from twinpool.spec.geometry import Geometry
from twinpool.units import DType

LOGS = Path(__file__).parents[2] / "data" / "logs"
GLM = Geometry(
    key_bytes=5995,
    value_bytes=0,
    conv_bytes=34 * 73728,
    recurrent_bytes=34 * 2097152,
    kv_dtype=DType.FP8,
    conv_dtype=DType.BFLOAT16,
    state_dtype=DType.FLOAT32,
    tp=2,
    num_full_layers=11,
    num_linear_layers=34,
)


def rank_of(name: str) -> RankPools:
    return read_boot_log((LOGS / name).read_text().splitlines(), name).boot.ranks[0]


def pools(tokens: int, *sizes: str, slots: int = 0) -> RankPools:
    printed = tuple(PrintedSize(Decimal(text)) for text in sizes)
    state = StateLine(slots=slots, conv=printed[0], recurrent=printed[0]) if slots else None
    line = KvLine(label="", dtype="bfloat16", tokens=tokens, sizes=printed)
    return RankPools(rank="", line=1, state=state, kv=line)


def test_the_published_log_gives_the_published_bytes() -> None:
    found = recover(rank_of("two_ranks.log"), 64)
    assert GLM.row_bytes in found.row
    assert GLM.slot_bytes in found.slot
    assert GLM.conv_bytes in found.conv
    assert found.row == Interval(5995, 5996)
    assert found.slot.error < Fraction(5, 10000)
    assert not mismatches(found, GLM)


@pytest.mark.parametrize(
    ("slots", "millions", "per_request", "cap"),
    [(429, "5.89", 5, 85), (300, "7.48", 5, 60), (192, "8.81", 4, 48)],
)
def test_the_published_table_follows_from_the_log_alone(
    slots: int, millions: str, per_request: int, cap: int
) -> None:
    found = recover(rank_of("two_ranks.log"), 64)
    split = split_again(found, Reserve(slots_per_request=per_request), pinned_slots=slots)
    for tokens in (split.tokens.low, split.sizes.kv_tokens, split.tokens.high):
        assert f"{tokens / 1e6:.2f}" == millions
    assert split.cap is not None
    assert (split.cap.value, split.cap.binds) == (cap, "state")


def test_the_ratio_of_the_guide_gives_180_slots_and_a_cap_of_45() -> None:
    found = recover(rank_of("two_ranks.log"), 64)
    split = split_again(found, Reserve(slots_per_request=4), ratio=Fraction("0.25"))
    assert split.slots == Interval(180, 180)
    assert split.cap is not None
    assert split.cap.value == 45


@pytest.mark.parametrize("name", ["two_ranks.log", "speculation.log", "post_capture.log"])
@pytest.mark.parametrize("drafts", [0, 4])
def test_the_split_of_the_log_reproduces_the_log(name: str, drafts: int) -> None:
    rank = rank_of(name)
    found = recover(rank)
    reserve = Reserve(slots_per_request=3, draft_tokens=drafts, asked=8)
    split = split_again(found, reserve, pinned_slots=found.state_slots)
    assert split.slots == Interval(found.state_slots, found.state_slots)
    assert split.tokens == Interval(rank.kv_tokens, rank.kv_tokens)


def test_drafts_add_to_the_row_and_have_their_own_states() -> None:
    found = recover(rank_of("speculation.log"), 1)
    without = sum(part.middle for part in found.kv_parts)
    assert 65536 + 2 * 2048 - 100 < found.row.middle < 65536 + 2 * 2048 + 100
    assert found.row.middle - without == pytest.approx(2 * 2048, abs=60)
    # 9 requests (one for padding) with 4 draft states each, recurrent and conv.
    assert 36 * 150994944 in Interval(found.draft_states.low - 2**27, found.draft_states.high)


def test_an_unknown_page_widens_the_interval_and_holds_every_page() -> None:
    rank = pools(4096, "0.50")
    wide = recover(rank)
    assert wide.page == Interval(1, 256)
    for page in (1, 16, 64, 256):
        known = recover(rank, page)
        assert wide.row.low <= known.row.low <= known.row.high <= wide.row.high


def test_a_page_that_does_not_divide_the_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="4096 KV rows, which are no whole number of pages of 3"):
        recover(pools(4096, "0.50"), 3)
    with pytest.raises(ConfigError, match="--page-size is 0"):
        recover(pools(4096, "0.50"), 0)


def test_sizes_that_print_as_zero_still_have_an_upper_end() -> None:
    found = recover(pools(64, "0.00", "0.00"), 1)
    assert found.row.low == 0
    assert found.row.high > 0


def test_a_mismatch_names_the_number_and_what_the_log_allows() -> None:
    found = recover(rank_of("two_ranks.log"), 64)
    half = Geometry(
        **{
            **{name: getattr(GLM, name) for name in GLM.__slots__},
            "recurrent_bytes": GLM.recurrent_bytes // 2,
        }
    )
    [wrong] = mismatches(found, half)
    assert (wrong.kind, wrong.expected) == ("state", GLM.recurrent_bytes // 2)
    assert GLM.recurrent_bytes in wrong.printed


def test_exact_bytes_leave_no_error() -> None:
    found = recover(rank_of("two_ranks.log"), 64).matched(GLM)
    assert (found.slot, found.row) == (Interval(73809920, 73809920), Interval(5995, 5995))
    split = split_again(found, Reserve(slots_per_request=5), ratio=Fraction("0.25"))
    assert split.slots.is_exact
    assert split.tokens.is_exact


def test_a_split_that_leaves_a_pool_empty_is_refused() -> None:
    found = recover(rank_of("two_ranks.log"), 64)
    with pytest.raises(CapacityError, match="leaves no KV page"):
        split_again(found, Reserve(slots_per_request=5), pinned_slots=10**6)


def test_slots_for_no_request_at_all_are_a_split_without_a_cap() -> None:
    found = recover(rank_of("two_ranks.log"), 64)
    split = split_again(found, Reserve(slots_per_request=5), pinned_slots=4)
    assert split.cap is None
    assert "4 slots, and one request reserves 5" in split.refused


@pytest.mark.parametrize(
    ("interval", "middle", "error"),
    [
        (Interval(10, 10), 10, Fraction(0)),
        (Interval(10, 13), 11, Fraction(2, 11)),
        (Interval(0, 1), 0, Fraction(1)),
    ],
)
def test_the_error_is_how_far_off_the_middle_can_be(
    interval: Interval, middle: int, error: Fraction
) -> None:
    assert (interval.middle, interval.error) == (middle, error)
