"""`twinpool explain` reads what `twinpool serve` logs, with nothing left to assume."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinpool.cli.main import run
from twinpool.cli.output import ExitCode
from twinpool.memory.boots import read_boot_log
from twinpool.settings.log_settings import settings_line
from twinpool.settings.pools import PoolPlan, plan_pools
from twinpool.settings.resolve import Resolved, resolve
from twinpool.settings.values import Source, Value
from twinpool.spec.model import read_model_spec

CONFIG = Path(__file__).parents[1] / "data" / "configs" / "Qwen--Qwen3.5-27B.json"


ELASTIC_LINE = re.compile(
    r"Elastic memory is allocated\. size: ([0-9]+\.[0-9]{2})GB, rows: ([0-9]+), "
    r"row: ([0-9]+) bytes, state slot: ([0-9]+) rows, up to ([0-9]+) state slots"
)


def booted(flags: dict[str, object]) -> tuple[Resolved, PoolPlan, list[str]]:
    """Return the settings, the pools and the lines that a server would log."""
    resolved = resolve(flags)
    plan = plan_pools(resolved, read_model_spec(CONFIG), Value(40 * 2**30, Source.FLAG))
    return resolved, plan, [*resolved.log_lines, settings_line(resolved), *plan.boot_lines]


@pytest.mark.parametrize(
    "flags",
    [
        {"memory_mode": "static"},
        {"memory_mode": "static", "page_size": 16, "max_running_requests": 7},
        {"mamba_radix_cache_strategy": "extra_buffer_lazy", "max_mamba_cache_size": 64},
    ],
)
def test_a_boot_log_of_ours_says_everything(flags: dict[str, object]) -> None:
    resolved, plan, lines = booted(flags)
    boot = read_boot_log(lines, "serve.log").boot
    assert boot.settings["page_size"] == str(plan.sizes.page_size)
    strategy = resolved.memory.mamba_radix_cache_strategy
    assert boot.settings["mamba_radix_cache_strategy"] == strategy.value
    assert boot.settings["tp_size"] == "1"
    (rank,) = boot.ranks
    assert rank.state is not None
    assert rank.state.slots == plan.sizes.state_slots
    assert rank.kv.tokens == plan.sizes.kv_tokens


def test_static_memory_boots_with_the_lines_of_the_reference() -> None:
    _, plan, _ = booted({"memory_mode": "static"})
    begins = ("Mamba Cache is allocated.", "KV Cache is allocated.", "max_running_requests is")
    assert len(plan.boot_lines) == len(begins)
    for line, beginning in zip(plan.boot_lines, begins, strict=True):
        assert line.startswith(beginning)


@pytest.mark.parametrize("flags", [{}, {"page_size": 16}, {"memory_mode": "elastic"}])
def test_elastic_memory_boots_with_one_line(flags: dict[str, object]) -> None:
    _, plan, _ = booted(flags)
    (line,) = plan.boot_lines
    match = ELASTIC_LINE.fullmatch(line)
    assert match is not None, line
    rows, row_bytes, per_slot, slots = (int(text) for text in match.groups()[1:])
    assert plan.arena is not None
    assert (rows, per_slot, slots) == (
        plan.arena.num_rows,
        plan.arena.rows_per_slot,
        plan.arena.num_frames,
    )
    assert row_bytes == plan.geometry.row_bytes
    # One frame beside those that serve is padding.
    assert float(match[1]) == round((rows + per_slot) * row_bytes / 2**30, 2)
    assert rows == slots * per_slot
    assert 39 < float(match[1]) <= 40


@pytest.mark.parametrize("before", [(), ({"memory_mode": "static"},)])
def test_a_log_of_elastic_memory_is_said_to_have_no_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: tuple[dict[str, object], ...]
) -> None:
    lines = [line for flags in (*before, {}) for line in booted(flags)[2]]
    log = tmp_path / "serve.log"
    log.write_text("\n".join(lines) + "\n")
    assert run(["explain", str(log)]) == ExitCode.FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("error: ") == 1
    assert f"serve.log:{len(lines)}: this server of twinpool has elastic memory" in shown.err
    assert "nothing is split" in shown.err
    assert "--memory static" in shown.err


def test_a_static_boot_after_an_elastic_one_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for flags in ({}, {"memory_mode": "static"}) for line in booted(flags)[2]]
    log = tmp_path / "serve.log"
    log.write_text("\n".join(lines) + "\n")
    assert run(["explain", str(log)]) == 0
    assert "elastic" not in capsys.readouterr().out
