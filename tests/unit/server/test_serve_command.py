"""`twinpool serve`: flags on their way to front and engine, and refusals before either starts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from twinpool.cli.main import run
from twinpool.engine.launch import EngineLaunch
from twinpool.engine.protocol import EngineSettings
from twinpool.settings.resolve import Resolved


class Caught:
    """What the command handed to the server."""

    def __init__(self) -> None:
        self.resolved: Resolved | None = None
        self.flags: dict[str, Any] = {}

    def __call__(self, resolved: Resolved, launch: EngineLaunch, **_rest: object) -> None:
        self.resolved = resolved
        self.flags = msgspec.msgpack.decode(launch.settings, type=EngineSettings).flags


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Caught:
    caught = Caught()
    monkeypatch.setattr("twinpool.server.run.serve", caught)
    monkeypatch.delenv("TWINPOOL_API_KEY", raising=False)
    return caught


def test_flags_reach_the_front_and_the_engine(caught: Caught) -> None:
    arguments = "models/x --host ::1 --port 9 --pool-memory 256MiB --skip-tokenizer-init"
    spellings = (
        "--mamba-full-memory-ratio 0.5 --mamba-radix-cache-strategy extra_buffer "
        "--mamba-max-states-per-path 4 --mamba-track-interval 128 --max-running-requests 7 "
        "--max-total-tokens 1000 --page-size 2 --tp 1 --schedule-policy lpm "
        "--speculative-num-draft-tokens 0 --memory static --enable-cache-report --enable-metrics"
    )
    assert run(["serve", *arguments.split(), *spellings.split()]) == 0
    assert caught.resolved is not None
    assert (caught.resolved.server.host, caught.resolved.server.port) == ("::1", 9)
    assert caught.resolved.model.model_path == "models/x"
    assert caught.resolved.memory.pool_memory == 256 * 2**20
    assert caught.flags["pool_memory"] == "256MiB"
    assert caught.flags["mamba_max_states_per_path"] == "4"
    assert caught.flags["skip_tokenizer_init"] is True


def test_pinned_slots_and_fraction_have_the_reference_spelling(caught: Caught) -> None:
    arguments = "--max-mamba-cache-size 32 --mem-fraction-static 0.5"
    assert run(["serve", *arguments.split()]) == 0
    assert caught.flags == {"max_mamba_cache_size": "32", "mem_fraction_static": "0.5"}


def test_keys_reach_the_front_and_never_the_engine(
    caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["serve", "--api-key", "one", "--api-key", "two"]) == 0
    assert caught.resolved is not None
    assert caught.resolved.server.api_keys == ("one", "two")
    assert caught.flags == {}
    monkeypatch.setenv("TWINPOOL_API_KEY", "three four")
    assert run(["serve"]) == 0
    assert caught.resolved.server.api_keys == ("three", "four")
    assert caught.flags == {}
    assert run(["serve", "--api-key", "one"]) == 0
    assert caught.resolved.server.api_keys == ("one",)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--memory rubber", "--memory"),
        ("--memory elastic --max-mamba-cache-size 9", "--memory elastic has no split"),
        ("--pool-memory lots", "--pool-memory"),
        ("--port 70000", "--port"),
        ("--pool-memory 1GiB --mem-fraction-static 0.5", "give one of them"),
        ("--no-such-flag", "--no-such-flag"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    caught: Caught, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert run(["serve", *arguments.split()]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""
    assert caught.resolved is None
