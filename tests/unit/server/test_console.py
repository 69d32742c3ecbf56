"""What is shown on stderr."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from twinpool.clock import VirtualClock
from twinpool.engine.protocol import Loading, Log
from twinpool.server.console import Console, describe


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """Give the root logger back as it was."""
    root, ours, uvicorn = (logging.getLogger(name) for name in (None, "twinpool", "uvicorn"))
    handlers, levels = root.handlers, (ours.level, uvicorn.level)
    yield
    root.handlers = handlers
    ours.setLevel(levels[0])
    uvicorn.setLevel(levels[1])


def _console(level: str = "info") -> tuple[Console, io.StringIO, VirtualClock]:
    stream, clock = io.StringIO(), VirtualClock(100.0)
    console = Console(stream, clock)
    console.start(level)
    return console, stream, clock


@pytest.mark.parametrize(
    ("loading", "text"),
    [
        (Loading("loading weights", 2**30, 2**31, "bytes"), "loading weights: 1.0 GiB of 2.0 GiB"),
        (Loading("compiling kernels", 3, 9, "kernels"), "compiling kernels: 3 of 9 kernels"),
        (Loading("building a model"), "building a model"),
    ],
)
def test_progress_is_described(loading: Loading, text: str) -> None:
    assert describe(loading) == text


def test_one_stage_is_shown_once_a_second_and_at_its_end() -> None:
    console, stream, clock = _console()
    for done in range(5):
        console.show(Loading("loading", done, 4, "parts"))
        clock.advance_to(clock.now() + 0.4)
    shown = [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()]
    assert shown == ["0 of 4 parts", "3 of 4 parts", "4 of 4 parts"]


def test_a_new_stage_is_shown_at_once() -> None:
    console, stream, _ = _console()
    console.show(Loading("one"))
    console.show(Loading("two"))
    assert len(stream.getvalue().splitlines()) == 2


def test_log_lines_keep_their_level() -> None:
    console, stream, _ = _console("warning")
    console.show(Log("quiet"))
    console.show(Log("loud", "error"))
    console.say("quiet too")
    assert "quiet" not in stream.getvalue()
    assert "ERROR loud" in stream.getvalue()
