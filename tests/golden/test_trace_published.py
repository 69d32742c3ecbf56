"""`trace info` gives the published figures of public traces, to the digit.

On small parts of them here; on the whole files where the environment variable `TWINPOOL_TRACES`
names a folder that holds `agentx/agentx_dev.jsonl.gz` and `mooncake/conversation_trace.jsonl.gz`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run

DATA = Path(__file__).parents[1] / "data"
WHOLE = os.environ.get("TWINPOOL_TRACES", "")


def info(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> dict[str, Any]:
    assert run(["trace", "info", str(path), "--json", *flags]) == 0, capsys.readouterr().err
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def rates(document: dict[str, Any]) -> list[float]:
    return [round(row["block_hit_rate"], 3) for row in document["lru"]]


def whole(name: str) -> Path:
    if not WHOLE:
        pytest.skip("TWINPOOL_TRACES is not set")
    return Path(WHOLE) / name


@pytest.mark.soak
def test_all_of_agentx(capsys: pytest.CaptureFixture[str]) -> None:
    found = info(capsys, whole("agentx/agentx_dev.jsonl.gz"))
    assert (found["format"], found["sessions"], found["requests"]) == ("agentx", 379, 26_038)
    assert (found["input_tokens"], found["output_tokens"]) == (3_317_651_366, 11_819_876)
    assert found["hit_tokens"] == 3_199_862_592
    assert round(found["hit_rate"], 4) == 0.9645
    turns, context, think = found["turns"], found["context_tokens"], found["think_s"]
    assert (turns["p50"], round(turns["p90"]), turns["max"]) == (44, 155, 514)
    assert [round(context[name], -4) for name in ("p50", "p90", "max")] == [150e3, 350e3, 880e3]
    assert (think["p50"], think["p90"]) == (10, 164)
    assert (found["rewritten_pairs"], found["turn_pairs"]) == (468, 25_488)


def test_all_of_mooncake(capsys: pytest.CaptureFixture[str]) -> None:
    found = info(capsys, whole("mooncake/conversation_trace.jsonl.gz"))
    assert (found["format"], found["requests"]) == ("mooncake", 12_031)
    assert round(found["hit_rate"], 4) == 0.3736
    assert rates(found) == [0.033, 0.042, 0.043, 0.056, 0.185, 0.342]


def test_the_beginning_of_mooncake(capsys: pytest.CaptureFixture[str]) -> None:
    found = info(capsys, DATA / "traces" / "mooncake_600.jsonl.gz")
    assert (found["requests"], found["input_tokens"], found["output_tokens"]) == MOONCAKE_600[:3]
    assert (found["hit_tokens"], found["duration_s"]) == MOONCAKE_600[3:5]
    assert [row["hit_tokens"] for row in found["lru"]] == MOONCAKE_600[5]


def test_48_sessions_of_agentx(capsys: pytest.CaptureFixture[str]) -> None:
    found = info(capsys, DATA / "agentx" / "lanes48.jsonl.gz", "--lru", "64k,256k,1M")
    assert (found["sessions"], found["requests"], found["input_tokens"]) == LANES_48[:3]
    assert (found["hit_tokens"], found["rewritten_pairs"], found["turn_pairs"]) == LANES_48[3:6]
    assert [row["hit_tokens"] for row in found["lru"]] == LANES_48[6]
    # No partial block has an id: every hit is a full block.
    assert all(row["block_hit_rate"] == row["hit_rate"] for row in found["lru"])
    assert found["duration_s"] is None


def test_two_sessions_with_subagents(capsys: pytest.CaptureFixture[str]) -> None:
    found = info(capsys, DATA / "traces" / "agentx_subagents.jsonl.gz")
    assert (found["sessions"], found["child_sessions"], found["requests"]) == SUBAGENTS[:3]
    assert (found["input_tokens"], found["hit_tokens"]) == SUBAGENTS[3:]


def test_three_sessions_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    found = info(capsys, DATA / "traces" / "taubench_3.tar.xz", "--bytes")
    assert (found["format"], found["sessions"], found["requests"]) == ("lmcache", 3, 75)
    assert (found["input_tokens"], found["output_tokens"], found["hit_tokens"]) == TAUBENCH
    assert found["think_s"] is None


# Counted block by block, outside this package, from the same files.
MOONCAKE_600 = (
    600,
    8293542,
    214274,
    1423195,
    200.999,
    [222208, 295936, 306688, 365001, 1335643, 1423195],
)
LANES_48 = (48, 4093, 546790032, 528692288, 82, 4045, [40476352, 378576000, 528692288])
SUBAGENTS = (2, 5, 135, 8995395, 8396096)
TAUBENCH = (18916, 2667, 15712)
