"""Boots of a log: ranks are kept apart, restarts recognised, and what is odd is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinpool.errors import TraceError
from twinpool.memory.boots import BootLog, read_boot_log

LOGS = Path(__file__).parents[2] / "data" / "logs"


def read(name: str) -> BootLog:
    return read_boot_log((LOGS / name).read_text().splitlines(), name)


def of(*lines: str) -> BootLog:
    return read_boot_log(lines, "x.log")


def state(slots: int, rank: str = "") -> str:
    return (
        f"[1{rank}] Mamba Cache is allocated. max_mamba_cache_size: {slots}, "
        "conv_state size: 0.10GB, ssm_state size: 2.00GB "
    )


def kv(tokens: int, rank: str = "", size: str = "1.00") -> str:
    return (
        f"[1{rank}] KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, "
        f"K size: {size} GB, V size: {size} GB"
    )


READY = (
    "[1] max_total_num_tokens=100, chunked_prefill_size=1, max_prefill_tokens=1, "
    "max_running_requests=8, context_len=64, available_gpu_mem=1.00 GB"
)


def test_two_ranks_of_one_boot_agree() -> None:
    log = read("two_ranks.log")
    assert log.num_boots == 1
    assert [rank.rank for rank in log.boot.ranks] == ["TP0", "TP1"]
    assert log.notes == ("2 ranks agree; all numbers are per rank",)
    first, second = log.boot.ranks
    assert first.cap == second.cap
    assert first.ready is not None
    assert second.ready is None
    assert log.boot.settings["mamba_radix_cache_strategy"] == "extra_buffer"
    assert "max_total_tokens" not in log.boot.settings


def test_the_last_complete_boot_counts_and_that_is_said() -> None:
    log = read("restarts.log")
    assert log.num_boots == 3
    [rank] = log.boot.ranks
    assert rank.state is not None
    assert (rank.state.slots, rank.kv.tokens) == (117, 320000)
    assert log.notes == (
        "the log holds 3 boots; the last complete one counts, from line 5; 1 later broke off",
    )


def test_a_second_pool_of_as_many_rows_is_the_draft_model() -> None:
    [rank] = read("speculation.log").boot.ranks
    assert [str(size.gib) for size in rank.kv.sizes] == ["6.10", "6.10"]
    assert [[str(size.gib) for size in line.sizes] for line in rank.drafts] == [["0.38", "0.38"]]
    assert rank.state is not None
    assert rank.state.draft_recurrent is not None


def test_a_pool_that_is_cut_down_after_capture_counts_as_cut_down() -> None:
    [rank] = read("post_capture.log").boot.ranks
    assert (rank.kv.tokens, rank.kv_tokens) == (8000000, 7478784)
    assert rank.rank == "DP0 TP0 EP0"


def test_an_upper_bound_without_its_final_size_is_said() -> None:
    log = of(
        state(4),
        "[1] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 100, KV size: 1.00 GB",
    )
    assert any("upper bound" in note for note in log.notes)


def test_a_plain_transformer_has_a_kv_line_alone() -> None:
    [rank] = of(kv(100)).boot.ranks
    assert rank.state is None


@pytest.mark.parametrize(
    "second", [(kv(100),), (state(4), kv(100)), (kv(50),)], ids=["ready", "state", "rows"]
)
def test_a_restart_is_told_by_what_cannot_come_twice(second: tuple[str, ...]) -> None:
    assert of(state(4), kv(100), READY, *second).num_boots == 2


def test_arguments_begin_a_boot() -> None:
    log = of("server_args={'page_size': 1}", kv(100), "server_args={'page_size': 64}", kv(100))
    assert log.num_boots == 2
    assert log.boot.settings["page_size"] == "64"


def test_ranks_that_disagree_are_complained_about() -> None:
    log = of(state(9, " TP0"), kv(100, " TP0"), state(8, " TP1"), kv(100, " TP1"))
    assert log.notes == ("warning: ranks disagree: TP0 and TP1 differ in their state line",)


def test_ranks_come_in_the_order_of_their_numbers() -> None:
    log = of(*(kv(100, f" TP{number}") for number in (10, 2, 1)))
    assert [rank.rank for rank in log.boot.ranks] == ["TP1", "TP2", "TP10"]


def test_a_rank_without_its_line_is_left_out_and_named() -> None:
    log = of(state(9, " TP0"), kv(100, " TP0"), state(9, " TP1"))
    assert [rank.rank for rank in log.boot.ranks] == ["TP0"]
    assert log.notes == ("lines are missing for TP1: those ranks are left out",)


def test_a_side_pool_is_left_out_and_named() -> None:
    side = kv(7).replace("KV Cache", "SWA KV Cache")
    log = of(kv(100).replace("KV Cache", "Full KV Cache"), side)
    assert log.boot.ranks[0].kv.tokens == 100
    assert any(note.startswith("the SWA KV pool is beside") for note in log.notes)


def test_a_cap_after_capture_keeps_what_the_warning_said() -> None:
    capped = (
        "max_running_requests is capped to 9 by the mamba state cache "
        "(max_mamba_cache_size=45, 5 state slots per request)."
    )
    log = of(state(45), kv(100), capped, "Post-capture KV sizing: max_running_requests 9 -> 8")
    cap = log.boot.ranks[0].cap
    assert cap is not None
    assert (cap.value, cap.pool, cap.slots_per_request) == (8, "state", 5)


@pytest.mark.parametrize(
    ("lines", "message", "hint"),
    [
        ((), "no pool was found; looked for `Mamba Cache is allocated.", "level info"),
        (("hello",), "`KV Cache is allocated.", "from the server's start on"),
        ((state(4),), "state pool is there, and that of the KV pool is missing", "ended well"),
        (("INFO GPU KV cache size: 178,880 tokens",), "vLLM", "--metrics"),
        (
            (
                "state cache is too small to serve any requests. max_mamba_cache_size=3, "
                "mamba_ratio=5",
            ),
            "3 state slots, and one request reserves 5",
            "twinpool size",
        ),
    ],
)
def test_a_log_without_pools_is_an_error_that_says_what_was_looked_for(
    lines: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(TraceError) as caught:
        of(*lines)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.path == "x.log"
