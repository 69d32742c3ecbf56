"""Resolving: from flags, a file and the model's defaults to final settings, each with its source.

Pure: it reads no file and asks no machine. An explicit value always beats a model default; what
has to be changed all the same is derived, says why, and gives one log line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from twinpool.errors import ConfigError
from twinpool.settings.fields import SettingField, fields_of
from twinpool.settings.memory import MemorySettings
from twinpool.settings.model import ModelSettings
from twinpool.settings.rules import RULES, Draft, refuse_replay_only
from twinpool.settings.scheduling import SchedulingSettings
from twinpool.settings.server import ServerSettings
from twinpool.settings.values import Source, Value
from twinpool.units import DType

PARTS: dict[str, type] = {
    "model": ModelSettings,
    "memory": MemorySettings,
    "scheduling": SchedulingSettings,
    "server": ServerSettings,
}
SETTINGS: Mapping[str, SettingField] = MappingProxyType(
    {field.name: field for part in PARTS.values() for field in fields_of(part)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was measured of the machine, by the caller.

    Attributes:
        total_bytes: Memory that this process may use at all (a cgroup's limit counts).
        free_bytes: The part of it that was free before anything was loaded.
    """

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Final settings.

    Attributes:
        model: Which checkpoint, and how it is read.
        memory: Both pools.
        scheduling: What runs when.
        server: The HTTP front.
        values: Every setting by name, with where it came from.
        log_lines: One line for each value that is not what was asked for.
    """

    model: ModelSettings
    memory: MemorySettings
    scheduling: SchedulingSettings
    server: ServerSettings
    values: Mapping[str, Value[object]]
    log_lines: tuple[str, ...]

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield `name`, `flag`, `value`, `source`, `why` of every setting, ready for JSON.

        Secrets are shown as how many there are.
        """
        for name, value in self.values.items():
            field = SETTINGS[name]
            yield {
                "name": name,
                "flag": field.flag,
                "value": _secret(value.value) if field.is_secret else to_json(value.value),
                "source": value.source.value,
                "why": value.why,
            }


def resolve(
    flags: Mapping[str, object],
    model_defaults: Mapping[str, object] | None = None,
    machine: Machine | None = None,
    *,
    file: Mapping[str, object] | None = None,
    assumed: Mapping[str, object] | None = None,
    preset: Mapping[str, Value[object]] | None = None,
) -> Resolved:
    """Give every setting its final value.

    Args:
        flags: What the command line set, by setting name; None means not given.
        model_defaults: What the model's family prefers.
        machine: What was measured, where something is to be served; None skips the checks against
            it.
        file: What a settings file set.
        assumed: What a command takes instead of the defaults when nothing else is known.
        preset: What goes with an engine that is reproduced; beats the model's defaults, which are
            made for another one.

    Raises:
        ConfigError: If a name is not known (the hint names the nearest one), a value cannot be
            used, or two values exclude each other.
    """
    layers = (
        (Source.FLAG, _named(flags, "the flags")),
        (Source.FILE, _named(file or {}, "the settings file")),
        (Source.ASSUMED, _named(preset or {}, "the engine's preset")),
        (Source.MODEL_DEFAULT, _named(model_defaults or {}, "the model's defaults")),
        (Source.ASSUMED, _named(assumed or {}, "the command")),
    )
    draft = Draft({name: _pick(field, layers) for name, field in SETTINGS.items()})
    for rule in RULES:
        rule(draft)
    if machine is not None:
        refuse_replay_only(draft)
        _check_machine(draft, machine)
    parts = {
        part: kind(**{field.name: draft[field.name].value for field in fields_of(kind)})
        for part, kind in PARTS.items()
    }
    return Resolved(
        **parts, values=MappingProxyType(dict(draft.values)), log_lines=tuple(draft.log_lines)
    )


def to_json(value: object) -> object:
    """Turn a setting's value into what JSON can hold: numbers, text, lists, null."""
    if isinstance(value, DType):
        return value.value
    if isinstance(value, Fraction):
        return float(value)
    if isinstance(value, tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, str):
        return str(value)
    return value


def _named(given: Mapping[str, object], where: str) -> dict[str, object]:
    """Drop what is not given, and refuse names that are no setting."""
    known: dict[str, object] = {}
    for key, value in given.items():
        name = key.removeprefix("--").replace("-", "_")
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
            raise ConfigError(
                f"{where} set {key!r}, which is not a setting",
                hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(SETTINGS)}",
            )
        if value is not None:
            known[name] = value
    return known


def _pick(field: SettingField, layers: tuple[tuple[Source, dict[str, object]], ...]) -> Value[Any]:
    for source, given in layers:
        if field.name in given:
            value = given[field.name]
            if isinstance(value, Value):
                return Value(field.read(value.value), source, value.why)
            return Value(field.read(value), source)
    return Value(field.default, Source.ASSUMED if field.is_assumed else Source.DEFAULT)


def _secret(value: object) -> str:
    return f"{len(value)} set" if isinstance(value, tuple) else "set"


def _check_machine(draft: Draft, machine: Machine) -> None:
    asked = draft["pool_memory"].value
    if asked is not None and asked > machine.free_bytes:
        raise ConfigError(
            f"--pool-memory asks for {asked} bytes, and {machine.free_bytes} of "
            f"{machine.total_bytes} are free",
            hint="ask for less, or free some memory",
        )
