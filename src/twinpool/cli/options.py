"""Flags made from the settings: one click option per setting, under the same name.

Knows no verb; a verb takes the parts that it needs, and gets only what was given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from twinpool.errors import ConfigError
from twinpool.settings.fields import SettingField, fields_of
from twinpool.settings.resolve import to_json

F = TypeVar("F", bound=Callable[..., Any])

# Short spellings of flags whose long one is the reference engine's.
_SHORT = {"radix_eviction_policy": "--eviction"}


def settings_options(
    *parts: type, only: Collection[str] | None = None, without_default: Collection[str] = ()
) -> Callable[[F], F]:
    """Give a command one option per setting of some settings dataclasses.

    Args:
        parts: Settings dataclasses, such as `MemorySettings`.
        only: Names of the settings to take; None: all of them.
        without_default: Names of the settings whose default does not hold for this command.

    Returns:
        A decorator. The command gets keyword arguments by setting name; what was not given is
        None, and values are text: `settings.resolve` parses them, so that flags and files are
        checked in one place.
    """

    def decorate(command: F) -> F:
        for part in reversed(parts):
            for setting in reversed(fields_of(part)):
                if setting.flag and (only is None or setting.name in only):
                    command = _option(setting, setting.name in without_default)(command)
        return command

    return decorate


def given(options: dict[str, Any]) -> dict[str, object]:
    """Keep the options that were given on the command line."""
    return {name: value for name, value in options.items() if value not in (None, ())}


def _option(setting: SettingField, is_without_default: bool) -> Callable[[F], F]:
    shown = "" if is_without_default else _default(setting)
    text = f"{setting.help}  [default: {shown}]" if shown else setting.help
    if setting.is_switch:
        return click.option(setting.flag, setting.name, is_flag=True, default=None, help=text)
    short = _SHORT.get(setting.name)
    return click.option(
        *((setting.flag, short) if short else (setting.flag,)),
        setting.name,
        type=str,
        multiple=setting.is_list or short is not None,
        callback=_only if short else None,
        metavar=_metavar(setting.flag),
        help=text,
    )


def _only(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Return the one value that was given by either spelling."""
    if len(values) > 1:
        raise ConfigError(f"{' and '.join(option.opts)} are the same", hint="give one of them")
    return values[0] if values else None


def _default(setting: SettingField) -> str:
    if setting.default is None or setting.is_switch or setting.is_list:
        return ""
    shown = to_json(setting.default)
    return f"{shown:g}" if isinstance(shown, float) else str(shown)


def _metavar(flag: str) -> str:
    """Name a value in help texts by the last word of its flag, where that says what it is."""
    word = flag.removeprefix("--").rsplit("-", 1)[-1]
    if word in ("static",):
        return "FRACTION"
    counts = ("size", "tp", "pp", "tokens", "requests", "path", "queue", "choices", "prompts")
    return "N" if word in counts else word.upper()
