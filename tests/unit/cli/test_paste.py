"""Flags to paste are flags that the engine takes, for a plan that it can run."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from twinpool.cli.main import run
from twinpool.cli.paste_text import decimal_text

HYBRID = "Qwen3.5-35B-A3B"
MEMORY = ("--memory-after-weights", "20GiB")


def size(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["size", *arguments, "--json"]) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def flag(flags: str, name: str) -> str | None:
    words = flags.split()
    return words[words.index(name) + 1] if name in words else None


@pytest.mark.parametrize(
    ("asked", "sglang", "vllm"),
    [
        ("bf16", "bfloat16", "bfloat16"),
        ("fp8", "fp8_e4m3", "fp8_e4m3"),
        ("fp8_e5m2", "fp8_e5m2", "fp8_e5m2"),
        ("fp4", "nvfp4", "nvfp4"),
        ("mxfp8", "mxfp8", None),
        ("float32", None, None),
    ],
)
def test_rows_are_named_as_each_engine_names_them(
    capsys: pytest.CaptureFixture[str], asked: str, sglang: str | None, vllm: str | None
) -> None:
    found = size(capsys, HYBRID, *MEMORY, "--kv-cache-dtype", asked)
    for engine, name in (("sglang", sglang), ("vllm", vllm)):
        flags = found["flags"][engine]
        assert flag(flags, "--kv-cache-dtype") == name
        refused = [note for note in found["notes"] if note.startswith(f"{engine}: does not run")]
        assert bool(refused) == (name is None) == (not flags)


def test_rows_in_the_dtype_of_the_weights_need_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    found = size(capsys, HYBRID, *MEMORY, "--kv-cache-dtype", "float32", "--dtype", "float32")
    assert flag(found["flags"]["sglang"], "--kv-cache-dtype") is None
    assert all(flag(flags, "--dtype") == "float32" for flags in found["flags"].values())


@pytest.mark.parametrize(
    ("model", "strategy", "slots_per_request"),
    [
        (HYBRID, "extra_buffer_lazy", "4"),
        ("Kimi-Linear-48B-A3B-Instruct", "extra_buffer_lazy", "4"),
        ("LFM2-1.2B", "no_buffer", "3"),
        ("LFM2-8B-A1B", "no_buffer", "3"),
        ("mamba-2.8b-hf", None, "3"),
        ("Mamba-Codestral-7B-v0.1", None, "3"),
    ],
)
def test_sglang_gets_a_strategy_that_it_has_for_the_model(
    capsys: pytest.CaptureFixture[str], model: str, strategy: str | None, slots_per_request: str
) -> None:
    found = size(capsys, model, *MEMORY)
    flags = found["flags"]["sglang"]
    assert flag(flags, "--mamba-radix-cache-strategy") == strategy
    # It refuses `no_buffer` unless overlap is switched off by hand.
    assert ("--disable-overlap-schedule" in flags) == (strategy == "no_buffer")
    assert any(f"{slots_per_request} slots per request" in note for note in found["notes"])


def test_sglang_without_rows_is_given_all_slots_by_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Its ratio would leave the KV share idle.
    found = size(capsys, "mamba-2.8b-hf", *MEMORY)
    slots = flag(found["flags"]["sglang"], "--max-mamba-cache-size")
    assert slots == str(found["state_slots"])


@pytest.mark.parametrize("model", ["Jamba-v0.1", "Zamba2-2.7B", "Bamba-9B-v1", "Olmo-Hybrid-7B"])
def test_models_that_sglang_does_not_have_get_no_flags(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    found = size(capsys, model, *MEMORY)
    assert found["flags"]["sglang"] == ""
    assert any(note.startswith("sglang: does not run there") for note in found["notes"])


def test_page_that_does_not_go_with_snapshots_is_refused_for_sglang(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert size(capsys, HYBRID, *MEMORY, "--page-size", "100")["flags"]["sglang"] == ""
    found = size(capsys, HYBRID, *MEMORY, "--page-size", "512")
    assert flag(found["flags"]["sglang"], "--mamba-track-interval") == "512"


def test_drafts_say_how_many_requests_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    found = size(capsys, HYBRID, *MEMORY, "--speculative-num-draft-tokens", "4")
    running = flag(found["flags"]["twinpool"], "--max-running-requests")
    assert running == str(found["max_running_requests"])
    assert flag(found["flags"]["sglang"], "--max-running-requests") is not None
    assert any("--speculative-algorithm" in note for note in found["notes"])
    assert any("--speculative-config" in note for note in found["notes"])


def test_vllm_is_told_to_keep_nothing_and_how_states_are_stored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    off = size(capsys, HYBRID, *MEMORY, "--disable-radix-cache", "--mamba-ssm-dtype", "bfloat16")
    words = off["flags"]["vllm"].split()
    assert "--no-enable-prefix-caching" in words
    assert "--enable-prefix-caching" not in words
    assert flag(off["flags"]["vllm"], "--mamba-ssm-cache-dtype") == "bfloat16"


def test_what_vllm_has_no_flag_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = size(capsys, HYBRID, *MEMORY, "--page-size", "64", "--max-total-tokens", "6400")
    (note,) = (note for note in found["notes"] if note.startswith("vllm:"))
    assert "a page of 64 and a bound of 6400 KV tokens cannot be asked for" in note


def test_direct_is_said_where_the_guide_of_the_model_prefers_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    workload = ("--sessions", "4", "--session-context", "8000")
    found = size(capsys, "GLM-5.3-Flash", *MEMORY, "--tp", "2", *workload)
    assert flag(found["flags"]["twinpool"], "--mamba-radix-cache-strategy") == "direct"


def test_plain_model_keeps_its_static_fraction(capsys: pytest.CaptureFixture[str]) -> None:
    flags = size(capsys, "Llama-3.1-8B", "--gpu", "H100")["flags"]["sglang"]
    assert flag(flags, "--mem-fraction-static") is not None


@pytest.mark.parametrize(
    "text", ["0.9", "1234567.8", "0.123456789012345678", "999999999999", "0.000001", "1"]
)
def test_numbers_come_back_digit_by_digit(text: str) -> None:
    assert decimal_text(Fraction(text)) == text


def test_ratio_is_pasted_in_all_its_digits(capsys: pytest.CaptureFixture[str]) -> None:
    found = size(capsys, HYBRID, *MEMORY, "--mamba-full-memory-ratio", "0.1234567890123")
    for engine in ("sglang", "twinpool"):
        pasted = flag(found["flags"][engine], "--mamba-full-memory-ratio")
        assert pasted == "0.1234567890123"
