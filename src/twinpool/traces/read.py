"""Reads a trace of any known format, and finds out which one it is.

Knows the formats by what their first line must have; the readers know the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from twinpool.errors import ConfigError, TraceError
from twinpool.traces.agentx import read_agentx
from twinpool.traces.bailian import read_bailian
from twinpool.traces.lines import plain_suffix, read_document
from twinpool.traces.lmcache import is_archive, lmcache_lines, read_lmcache
from twinpool.traces.mooncake import read_mooncake
from twinpool.traces.openai import read_openai
from twinpool.traces.own_lines import FORMAT
from twinpool.traces.own_reader import read_own
from twinpool.traces.schema import Trace
from twinpool.traces.tokens import TextOptions


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format that can be read.

    Attributes:
        name: What `--format` calls it.
        about: What it is, for people.
        marks: Sets of fields; the first line of a file has all of one set.
        read: The reader.
        is_text: Whether it holds text, to be made tokens of.
    """

    name: str
    about: str
    marks: tuple[frozenset[str], ...]
    read: Callable[[Path, TextOptions], Trace]
    is_text: bool = False


# In the order in which they are tried.
FORMATS = (
    TraceFormat(
        FORMAT,
        "twinpool's own format",
        (frozenset({"twinpool_trace"}),),
        lambda path, _: read_own(path),
    ),
    TraceFormat(
        "agentx",
        "AgentX sessions: a folder of JSON files, or JSON lines",
        (frozenset({"block_size", "requests"}),),
        lambda path, _: read_agentx(path),
    ),
    TraceFormat(
        "bailian",
        "Qwen-Bailian chats",
        (frozenset({"chat_id", "parent_chat_id", "hash_ids"}),),
        lambda path, _: read_bailian(path),
    ),
    TraceFormat(
        "mooncake",
        "Mooncake requests",
        (frozenset({"timestamp", "input_length", "output_length", "hash_ids"}),),
        lambda path, _: read_mooncake(path),
    ),
    TraceFormat(
        "lmcache",
        "LMCache agent text: JSON lines, a folder or a tar archive of them",
        (frozenset({"timestamp", "input", "output", "session_id"}),),
        read_lmcache,
        is_text=True,
    ),
    TraceFormat(
        "openai",
        "OpenAI-style requests",
        (frozenset({"messages"}), frozenset({"body"}), frozenset({"prompt"})),
        read_openai,
        is_text=True,
    ),
)


def read_trace(path: Path, *, format: str | None = None, text: TextOptions | None = None) -> Trace:
    """Read a trace.

    Args:
        path: A file or folder; `.gz`, `.xz` and archives are unpacked.
        format: The format's name; None finds out, and the trace says what was found.
        text: How the text of `lmcache` and `openai` traces becomes blocks.

    Raises:
        TraceError: If the trace cannot be read, or the format is not found.
        ConfigError: If there is no such format, or text options are missing or have no use.
    """
    found = detect(path) if format is None else find_format(format)
    options = text if text is not None else TextOptions()
    if not found.is_text and options != TextOptions():
        raise ConfigError(
            f"{path} is a trace of the format {found.name}, which holds no text",
            hint="leave out --tokenizer, --bytes, --block-tokens and --output-tokens",
        )
    return found.read(path, options)


def find_format(name: str) -> TraceFormat:
    """Return a format by its name.

    Raises:
        ConfigError: If there is none.
    """
    for each in FORMATS:
        if each.name == name:
            return each
    raise ConfigError(
        f"no trace format {name[:40]!r}", hint=f"one of {', '.join(each.name for each in FORMATS)}"
    )


def detect(path: Path) -> TraceFormat:
    """Find out the format of a trace from its first line.

    Args:
        path: The file, folder or archive.

    Raises:
        TraceError: If it cannot be read, or is none that is known.
    """
    where, number, line = _first(path)
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not JSON: {error}", path=where, line=number, hint=_known()) from error
    fields = frozenset(document) if isinstance(document, dict) else frozenset()
    for each in FORMATS:
        if any(mark <= fields for mark in each.marks):
            return each
    seen = ", ".join(sorted(str(name)[:40] for name in fields)[:12]) or "no JSON object"
    raise TraceError(
        f"a trace of no known format; its fields: {seen}", path=where, line=number, hint=_known()
    )


def _first(path: Path) -> tuple[str, int, bytes]:
    source = path
    if path.is_dir():
        known = [file for file in path.iterdir() if plain_suffix(file) in (".json", ".jsonl")]
        if not known:
            raise TraceError("no .json and no .jsonl file in the folder", path=str(path))
        source = min(known)
    if plain_suffix(source) == ".json":
        return str(source), 1, read_document(source)
    lines = lmcache_lines(path if is_archive(path) else source)
    for where, number, line in lines:
        return where, number, line
    raise TraceError("the file is empty", path=str(source))


def _known() -> str:
    kinds = "; ".join(
        f"{each.name} ({' or '.join('+'.join(sorted(mark)) for mark in each.marks)})"
        for each in FORMATS
    )
    return f"looked for the fields of {kinds}; --format F names one"
