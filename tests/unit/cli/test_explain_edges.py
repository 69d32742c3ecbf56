"""`twinpool explain` with replicas that share requests out, and with inputs that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run
from twinpool.errors import ConfigError
from twinpool.telemetry.scrape import read_metrics

REPLICAS = (
    "server_args=ServerArgs(tp_size=8, dp_size=4, enable_dp_attention=True, page_size=1, "
    "mamba_radix_cache_strategy='extra_buffer', max_running_requests=2000)\n"
    "[DP0 TP0] Mamba Cache is allocated. max_mamba_cache_size: 429, conv_state size: 0.30GB, "
    "ssm_state size: 12.60GB \n"
    "[DP0 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1000000, "
    "K size: 4.77 GB, V size: 4.77 GB\n"
)
ALONE = REPLICAS.replace("dp_size=4, enable_dp_attention=True, ", "")


def explained(
    capsys: pytest.CaptureFixture[str], path: Path, text: str, *arguments: str
) -> dict[str, Any]:
    path.write_text(text)
    assert run(["explain", str(path), *arguments, "--json"]) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_flags_are_those_of_all_replicas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    found = explained(capsys, log, REPLICAS, "--average-context", "4096")
    slots = found["concurrency"]["state_slots"]
    (advice,) = found["advice"]
    # The server divides this flag by its replicas.
    assert f"--max-mamba-cache-size {4 * slots}," in advice
    assert any("4 data parallel replicas" in note for note in found["notes"])
    alone = explained(capsys, log, ALONE, "--average-context", "4096")
    slots = alone["concurrency"]["state_slots"]
    assert f"--max-mamba-cache-size {slots}," in alone["advice"][0]


def test_sessions_are_shared_out_among_replicas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    workload = ("--sessions", "202", "--session-context", "4000", "--running", "101")
    found = explained(capsys, tmp_path / "server.log", REPLICAS, *workload)
    assert found["workload"]["sessions"] == 51
    assert found["workload"]["running"] == 26
    assert any("51 of them, 26 running" in note for note in found["notes"])


@pytest.mark.parametrize("arguments", [("-",), ("--metrics", "-")])
def test_closed_standard_input_is_an_error_with_a_hint(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert run(["explain", *arguments]) == 2
    error = capsys.readouterr().err
    assert "standard input is closed" in error
    assert "hint: " in error


def test_control_characters_of_metrics_do_not_reach_the_terminal() -> None:
    with pytest.raises(ConfigError) as caught:
        read_metrics("\x1b[31mname 1\n")
    assert caught.value.message.isprintable()
    assert "name" in caught.value.message
