"""`twinpool size` prints the published boot logs and tables to the digit, from the config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run

DATA = Path(__file__).parents[1] / "data"
CASES: dict[str, Any] = json.loads((DATA / "sizing_cases.json").read_text())
GLM = CASES["glm-5.3-flash, TP 2, fp8 latent KV"]
GLM_FLAGS = (
    *("--tp", "2", "--kv-cache-dtype", "fp8_e4m3"),
    *("--memory-after-weights", str(GLM["rest_bytes_static_pools"])),
    *("--page-size", "64", "--max-running-requests", "256"),
)
KEYS = (
    "state_slots",
    "kv_tokens",
    "state_bytes_per_slot",
    "conv_bytes_per_slot",
    "ssm_bytes_per_slot",
    "kv_bytes_per_token",
    "token_equiv",
    "slots_per_request",
    "max_running_requests",
    "binding",
    "balanced_ratio",
    "ratio",
    "boot_log",
    "provenance",
)


def size(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["size", *arguments, "--json"]) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def glm(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return size(capsys, str(DATA / GLM["config"]), *GLM_FLAGS, *arguments)


def test_promised_keys_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(KEYS) <= set(glm(capsys))


def test_published_boot_log(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = (row for row in GLM["rows"] if row["state_slots"] == 429)
    found = glm(
        capsys,
        *("--mamba-full-memory-ratio", "0.9", "--mamba-radix-cache-strategy", row["strategy"]),
    )
    assert found["state_slots"] == row["state_slots"]
    assert found["kv_tokens"] == row["kv_tokens"]
    assert found["slots_per_request"] == row["slots_per_request"]
    assert found["max_running_requests"] == row["max_running_requests"]
    assert found["binding"] == "state"
    assert found["state_bytes_per_slot"] == GLM["state_bytes_per_slot"]["value"]
    assert found["kv_bytes_per_token"] == GLM["kv_bytes_per_token"]["value"]
    assert round(found["token_equiv"]) == 12312
    assert found["boot_log"] == [
        "Mamba Cache is allocated. max_mamba_cache_size: 429, "
        f"conv_state size: {row['conv_GiB']}GB, ssm_state size: {row['ssm_GiB']}GB ",
        "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 5890560, "
        f"KV size: {row['kv_GiB']} GB",
        "max_running_requests is capped to 85 by the mamba state cache (max_mamba_cache_size=429, "
        "5 state slots per request). To raise it: increase --mamba-full-memory-ratio or "
        "--max-mamba-cache-size, or halve the state size with --mamba-ssm-dtype bfloat16.",
    ]


@pytest.mark.parametrize("slots", [300, 192])
def test_published_table_of_pinned_slots(capsys: pytest.CaptureFixture[str], slots: int) -> None:
    (row,) = (row for row in GLM["rows"] if row["state_slots"] == slots)
    found = glm(
        capsys,
        *("--max-mamba-cache-size", str(slots), "--mamba-radix-cache-strategy", row["strategy"]),
    )
    assert found["state_slots"] == slots
    assert f"{found['kv_tokens'] / 1e6:.2f}" == row["kv_tokens_millions"]
    assert found["max_running_requests"] == row["max_running_requests"]


def test_published_model_default_is_in_force_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = glm(capsys)
    assert (found["state_slots"], found["max_running_requests"], found["ratio"]) == (180, 45, 0.25)
    assert found["provenance"]["mamba_radix_cache_strategy"] == {
        "value": "extra_buffer_lazy",
        "source": "model default",
        "why": "",
    }
    assert any("model defaults in force" in note for note in found["notes"])


def test_published_model_default_starves_48_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    found = glm(capsys, "--sessions", "48", "--session-context", "170000")
    assert any("45" in note and "48" in note for note in found["notes"]), found["notes"]


def test_an_explicit_flag_beats_the_model_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = glm(capsys, "--mamba-full-memory-ratio", "0.9")
    assert found["ratio"] == 0.9
    assert found["provenance"]["ratio"]["source"] == "flag"
    assert found["slots_per_request"] == 4


@pytest.mark.parametrize("case", [row for row in CASES["worked"] if "config" in row])
def test_worked_values(capsys: pytest.CaptureFixture[str], case: dict[str, Any]) -> None:
    arguments = ["--tp", str(case["tp"]), "--memory-after-weights", "40GiB"]
    found = size(capsys, str(DATA / case["config"]), *arguments)
    assert found["state_bytes_per_slot"] == case["state_bytes_per_slot"]
    assert found["kv_bytes_per_token"] == case["kv_bytes_per_token_bf16"]
    assert found["state_bytes_per_slot"] == (
        found["conv_bytes_per_slot"] + found["ssm_bytes_per_slot"]
    )


def test_balanced_ratio_is_where_both_pools_end_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    strategy = ("--mamba-radix-cache-strategy", "extra_buffer")
    found = glm(capsys, *strategy, "--average-context", "8192")
    exact = 5 * GLM["state_bytes_per_slot"]["value"] / GLM["kv_bytes_per_token"]["value"] / 8192
    assert found["balanced_ratio"] == pytest.approx(exact, rel=1e-12)
    balanced = glm(capsys, *strategy, "--mamba-full-memory-ratio", f"{exact:.6f}")
    assert balanced["max_running_requests"] == pytest.approx(balanced["kv_tokens"] / 8192, rel=0.02)


@pytest.mark.parametrize("config", sorted((DATA / "configs").glob("*.json")), ids=lambda p: p.stem)
@pytest.mark.parametrize("extra", [(), ("--average-context", "4096"), ("--tp", "2")])
def test_every_config_is_sized_as_text_and_as_json(
    capsys: pytest.CaptureFixture[str], config: Path, extra: tuple[str, ...]
) -> None:
    arguments = (str(config), "--memory-after-weights", "60GiB", *extra)
    found = size(capsys, *arguments)
    assert found["state_slots"] > 0
    assert found["kv_tokens"] > 0
    assert run(["size", *arguments]) == 0
    text = capsys.readouterr().out
    assert f"{found['state_slots']:,} slots" in text
    assert f"{found['kv_tokens']:,} tokens" in text
    for line in found["boot_log"]:
        assert line.rstrip() in text
    for flags in found["flags"].values():
        assert flags in text
