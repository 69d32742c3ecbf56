"""The command line finds verbs late, and says what is wrong without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from twinpool import __version__
from twinpool.cli.main import VERBS, run
from twinpool.cli.options import given, settings_options
from twinpool.errors import CapacityError, ConfigError
from twinpool.settings.memory import MemorySettings
from twinpool.settings.resolve import SETTINGS, resolve
from twinpool.settings.server import ServerSettings

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., object]], None]:
    """Install a function as the verb `serve`, with the flags of memory and server."""

    def install(body: Callable[..., object]) -> None:
        command = click.command("serve")(settings_options(MemorySettings, ServerSettings)(body))
        module = types.ModuleType("twinpool.cli.serve")
        module.serve = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "twinpool.cli.serve", module)

    return install


def _raiser(error: BaseException) -> Callable[..., object]:
    def body(**options: object) -> None:
        raise error

    return body


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"twinpool {__version__}\n"


def test_help_lists_verbs_on_stdout_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(f"  {name} " in out and help_line in out for name, help_line in VERBS.items())


def test_help_needs_neither_torch_nor_a_verb() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['twinpool.cli.serve'] = None\n"
        "from twinpool.cli.main import run\n"
        "sys.exit(run(['--help']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_nothing_typed_shows_help_and_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([]) == 2
    assert "Usage: twinpool" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (["srve"], "no such command: 'srve'", "did you mean serve?"),
        (["qqq"], "no such command: 'qqq'", "commands: serve"),
        (["serve", "--pool-memroy", "1"], "no such option: --pool-memroy", "--pool-memory?"),
        (["--nothing"], "No such option", "twinpool --help"),
        (["serve", "--port"], "requires an argument", "--help"),
    ],
)
def test_typing_errors_say_what_is_near(
    argv: list[str],
    error: str,
    hint: str,
    verb: Callable[[Callable[..., object]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb(lambda **options: None)
    assert run(argv) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith("error: ")
    assert error.lower() in lines[0].lower()
    assert lines[1].startswith("hint: ")
    assert hint in lines[1]


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (CapacityError("too small", hint="more"), 1, "error: too small\nhint: more\n"),
        (ConfigError("bad flag"), 2, "error: bad flag\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            1,
            "error: this command needs torch, which is not installed\n"
            "hint: pip install '.[serve]' in the checkout, or use make serve, which does\n",
        ),
    ],
)
def test_errors_become_messages_and_exit_codes(
    error: BaseException,
    code: int,
    says: str,
    verb: Callable[[Callable[..., object]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb(_raiser(error))
    assert run(["serve"]) == code
    assert capsys.readouterr() == ("", says)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), ModuleNotFoundError("x", name="twinpool.cli.nothing")]
)
def test_a_bug_keeps_its_traceback(
    error: BaseException, verb: Callable[[Callable[..., object]], None]
) -> None:
    verb(_raiser(error))
    with pytest.raises(type(error)):
        run(["serve"])


def test_exit_code_of_a_verb_is_passed_on(
    verb: Callable[[Callable[..., object]], None],
) -> None:
    verb(lambda **options: 1)
    assert run(["serve"]) == 1
    verb(lambda **options: None)
    assert run(["serve"]) == 0


def test_flags_reach_the_settings_as_given(
    verb: Callable[[Callable[..., object]], None],
) -> None:
    seen: list[dict[str, object]] = []
    verb(lambda **options: seen.append(given(options)))
    argv = ["serve", "--pool-memory", "1MiB", "--disable-radix-cache", "--port=9"]
    argv += ["--api-key", "a", "--api-key", "b", "--memory", "static"]
    assert run(argv) == 0
    (flags,) = seen
    assert flags == {
        "pool_memory": "1MiB",
        "disable_radix_cache": True,
        "port": "9",
        "api_keys": ("a", "b"),
        "memory_mode": "static",
    }
    resolved = resolve(flags)
    assert (resolved.memory.pool_memory, resolved.server.api_keys) == (2**20, ("a", "b"))


def test_a_value_of_a_flag_that_cannot_be_used_is_a_usage_error(
    verb: Callable[[Callable[..., object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(lambda **options: resolve(given(options)))
    assert run(["serve", "--mamba-max-states-per-path", "0"]) == 2
    assert "error: --mamba-max-states-per-path: 0 is out of range\n" in capsys.readouterr().err


def test_every_flag_shows_its_help_and_default(
    verb: Callable[[Callable[..., object]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(lambda **options: None)
    assert run(["serve", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for name in ("mamba_full_memory_ratio", "mem_fraction_static", "page_size", "host"):
        assert SETTINGS[name].help in words
    assert "[default: 0.9]" in words
    assert "[default: 127.0.0.1]" in words
