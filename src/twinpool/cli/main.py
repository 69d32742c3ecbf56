"""The `twinpool` command: finds the verb, and turns errors into messages and exit codes.

A verb is loaded when it is called, so that `--help` is quick and a verb that needs no torch runs
without it. Knows no verb's options.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import sys
from collections.abc import Sequence

import click

from twinpool import __version__
from twinpool.cli.output import ExitCode, exit_code_of, print_error
from twinpool.errors import TwinpoolError

# Verb to help line; the verb `x` is the click command `x` of `twinpool.cli.x`.
VERBS = {
    "serve": "Serve a model over HTTP, with prefix reuse from two memory pools.",
    "size": "Size both pools of a model for given memory and workload.",
    "replay": "Replay a trace in virtual time on the live scheduler and memory.",
    "sweep": "Replay a trace at many splits and find the one to run with.",
    "explain": "Explain a server's pools from its boot log or its metrics.",
    "trace": "Look at a recorded workload, convert it, or make one.",
}


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb's module and return its command."""
        if cmd_name not in VERBS:
            return None
        command = getattr(importlib.import_module(f"twinpool.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; a name that is none says which one is near."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            near = difflib.get_close_matches(name, VERBS, n=1, cutoff=0.5)
            raise NoSuchVerb(name, near[0] if near else "")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs from the table, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


class NoSuchVerb(click.UsageError):
    """A verb that does not exist.

    Args:
        name: What was typed.
        near: The nearest verb; empty when none is near.
    """

    def __init__(self, name: str, near: str) -> None:
        super().__init__(f"no such command: {name!r}")
        self.hint = f"did you mean {near}?" if near else f"commands: {', '.join(VERBS)}"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="twinpool %(version)s")
def cli() -> None:
    """Serve hybrid language models from a state pool and a KV pool."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        argv: Arguments after the program's name; None: those of the process.

    Raises:
        SystemExit: Always; 0 ok, 1 failed, 2 usage, 130 interrupted.
    """
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: Arguments after the program's name; None: those of the process.
    """
    try:
        outcome = cli.main(args=argv, prog_name="twinpool", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.message, err=True)
        return ExitCode.USAGE
    except click.ClickException as error:
        print_error(*_click_message(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        print_error(f"the output cannot be written: {error.strerror}")
        return ExitCode.FAILED
    except TwinpoolError as error:
        print_error(error.message, error.hint)
        return exit_code_of(error)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "twinpool"):
            raise
        print_error(
            f"this command needs {missing}, which is not installed",
            hint="pip install '.[serve]' in the checkout, or use make serve, which does",
        )
        return ExitCode.FAILED
    return outcome if isinstance(outcome, int) else ExitCode.OK


def _click_message(error: click.ClickException) -> tuple[str, str]:
    if isinstance(error, NoSuchVerb):
        return error.message, error.hint
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"no such option: {error.option_name}", f"did you mean {error.possibilities[0]}?"
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "twinpool"
        return error.format_message(), f"{command} --help lists what can be given"
    return error.format_message(), ""
