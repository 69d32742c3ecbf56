"""Single lines of a log: every form of the pools' lines is read, whatever stands around it."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from twinpool.memory.boot_reader import (
    CapLine,
    KvLine,
    PrintedSize,
    ReadyLine,
    RefusedLine,
    ResizedLine,
    SettingsLine,
    StateLine,
    read_line,
)
from twinpool.units import GIB

STATE = (
    "Mamba Cache is allocated. max_mamba_cache_size: 429, conv_state size: 1.00GB, "
    "ssm_state size: 28.55GB "
)
AROUND = (
    "{}",
    "[2026-09-01 10:01:00 TP1] {}",
    "\x1b[32m[2026-09-01 10:01:00.123 TP1]\x1b[0m \x1b[1m{}\x1b[0m",
    "2026-09-01 10:01:00,123 INFO {}",
    "Sep 01 10:01:00 host sglang[81]: [2026-09-01 10:01:00 TP1] {}",
    '{{"log":"\\u001b[32m[10:01:00 TP1]\\u001b[0m {}\\n","stream":"stderr"}}',
    "Loading safetensors: 100%|####| 8/8 [00:03<00:00] [2026-09-01 10:01:00 TP1] {}",
    "sglang-0  | {}",
)


def size(text: str) -> PrintedSize:
    return PrintedSize(Decimal(text))


@pytest.mark.parametrize("around", AROUND)
def test_the_state_line_is_found_in_any_dress(around: str) -> None:
    rank = "TP1" if "TP1" in around else ""
    expected = StateLine(slots=429, conv=size("1.00"), recurrent=size("28.55"))
    assert list(read_line(around.format(STATE))) == [(rank, expected)]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 64, KV size: 0.50 GB",
            KvLine(label="", dtype="float8_e4m3fn", tokens=64, sizes=(size("0.50"),)),
        ),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, K size: 1.25 GB, "
            "V size: 2.50 GB",
            KvLine(label="", dtype="bfloat16", tokens=7, sizes=(size("1.25"), size("2.50"))),
        ),
        (
            "KV Cache is allocated. #tokens: 7, K size: 1.25 GB, V size: 2.50 GB",
            KvLine(label="", dtype="", tokens=7, sizes=(size("1.25"), size("2.50"))),
        ),
        (
            "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 7, KV size: 1.25 GB",
            KvLine(
                label="", dtype="bfloat16", tokens=7, sizes=(size("1.25"),), is_upper_bound=True
            ),
        ),
        (
            "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 7, "
            "KV size: 1.25 GB, avail mem=0.50 GB",
            ResizedLine(tokens=7, size=size("1.25"), is_draft=False),
        ),
        (
            "Post-capture KV sizing: draft KV cache allocated. dtype: torch.bfloat16, "
            "#tokens: 7, KV size: 1.25 GB",
            ResizedLine(tokens=7, size=size("1.25"), is_draft=True),
        ),
        (
            "max_running_requests is capped to 85 by the mamba state cache "
            "(max_mamba_cache_size=429, 5 state slots per request). To raise it: …",
            CapLine(value=85, pool="state", slots=429, slots_per_request=5),
        ),
        (
            "max_running_requests is capped to 16 by the KV cache (32 tokens, 2 per request).",
            CapLine(value=16, pool="kv"),
        ),
        (
            "max_running_requests was reduced from the requested 64 to 16 (per dp worker) due to "
            "the available KV cache capacity.",
            CapLine(value=16, pool="kv", asked=64),
        ),
        (
            "Post-capture KV sizing: max_running_requests 64 -> 60",
            CapLine(value=60, pool=""),
        ),
        (
            "max_total_num_tokens=7, chunked_prefill_size=8, max_prefill_tokens=9, "
            "max_running_requests=10, context_len=11, available_gpu_mem=0.50 GB",
            ReadyLine(tokens=7, max_running_requests=10, context_length=11),
        ),
        (
            "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any "
            "requests. max_mamba_cache_size=3, mamba_ratio=5, resulting max_num_reqs=0.",
            RefusedLine(slots=3, slots_per_request=5),
        ),
    ],
)
def test_every_form_is_found_in_any_dress(around: str, line: str, expected: object) -> None:
    assert [finding for _, finding in read_line(around.format(line))] == [expected]


def test_draft_states_are_read_from_the_state_line() -> None:
    line = STATE + (
        "intermediate_ssm_state_cache size: 5.06GB intermediate_conv_window_cache size: 0.04GB "
    )
    [(_, found)] = read_line(line)
    assert isinstance(found, StateLine)
    assert (found.draft_recurrent, found.draft_conv) == (size("5.06"), size("0.04"))


@pytest.mark.parametrize(("label", "is_main"), [("Full", True), ("SWA", False)])
def test_a_label_tells_side_pools_apart(label: str, is_main: bool) -> None:
    line = f"[TP0] {label} KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, KV size: 1 GB"
    [(_, found)] = read_line(line)
    assert isinstance(found, KvLine)
    assert (found.label, found.is_main) == (label, is_main)


@pytest.mark.parametrize(
    "text",
    [
        "server_args=ServerArgs(model_path='a, b', page_size=64, kv_cache_dtype=\"auto\", "
        "mamba_ssm_dtype=None, tp_size=2, my_page_size=9)",
        "server_args={'model_path': 'a, b', 'page_size': 64, 'kv_cache_dtype': 'auto', "
        "'mamba_ssm_dtype': None, 'tp_size': 2, 'my_page_size': 9}",
    ],
)
def test_arguments_are_read_from_both_forms(text: str) -> None:
    [(_, found)] = read_line("[2026-09-01 10:00:00] " + text)
    assert found == SettingsLine(
        values={"model_path": "a, b", "page_size": "64", "kv_cache_dtype": "auto", "tp_size": "2"}
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "KV Cache is allocated.",
        "Mamba Cache is allocated. max_mamba_cache_size: many",
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, KV size: nan GB",
        "Decode batch, #running-req: 3, #full token: 91211, mamba num: 9, mamba usage: 0.16",
        "GPU KV cache size: 178,880 tokens",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert list(read_line(line)) == []


def test_two_findings_of_one_line_come_in_order_with_their_own_ranks() -> None:
    other = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, KV size: 1.00 GB"
    found = list(read_line(f"[1 TP0] {STATE}[1 DP1 TP1 EP1] {other}"))
    assert [(rank, type(finding)) for rank, finding in found] == [
        ("TP0", StateLine),
        ("DP1 TP1 EP1", KvLine),
    ]


@pytest.mark.parametrize(
    "line",
    ["KV Cache " * 50_000, "[TP0 " * 60_000, "max_total_num_tokens=1, " * 20_000],
)
def test_a_long_line_of_near_misses_ends(line: str) -> None:
    """Every pattern is bounded; one that were not would run into the test's time limit."""
    assert list(read_line(line + " max_running_requests KV Cache")) == []


@pytest.mark.parametrize(("text", "half"), [("1.00", "0.005"), ("0.5", "0.05"), ("3", "0.5")])
def test_a_printed_size_is_half_a_step_wide_on_each_side(text: str, half: str) -> None:
    printed = size(text)
    assert printed.low_bytes == (Fraction(text) - Fraction(half)) * GIB
    assert printed.high_bytes == (Fraction(text) + Fraction(half)) * GIB


def test_a_printed_zero_is_not_negative() -> None:
    assert size("0.00").low_bytes == 0
