"""Reader of LMCache agent traces: the text of each request and of its answer, with times.

Knows no chat template: `input` is taken as the server got it.

Source: LMCache/lmcache-agent-trace.
"""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from twinpool.errors import TraceError
from twinpool.traces.lines import decode, number_lines, plain_suffix, read_lines
from twinpool.traces.schema import Trace
from twinpool.traces.text_sessions import TextRequest, text_sessions
from twinpool.traces.tokens import Encoder, TextOptions, encoder_of

MICROSECONDS = 1_000_000


class _Request(msgspec.Struct):
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    input: str
    output: str
    session_id: str


def read_lmcache(path: Path, options: TextOptions) -> Trace:
    """Read JSON lines, a folder of such files, or a tar archive of them.

    Args:
        path: The file, folder or archive; `.gz` and `.xz` are unpacked.
        options: How text becomes blocks.

    Returns:
        One session per `session_id`, its turns by time; a file without lines adds none.

    Raises:
        TraceError: If a line is no request; names the file, within an archive too, and the line.
        ConfigError: If the options do not say how tokens are counted.
    """
    encoder = encoder_of(options)
    lines: list[tuple[int, TextRequest]] = []
    for where, number, line in lmcache_lines(path):
        request = decode(line, _Request, "a request", path=where, number=number)
        lines.append((request.timestamp, _tokens(request, encoder)))
    begin = min((stamp for stamp, _ in lines), default=0)
    # Whole microseconds are subtracted first: a float of seconds since 1970 has no room for them.
    requests = [replace(request, at_s=(stamp - begin) / MICROSECONDS) for stamp, request in lines]
    sessions = text_sessions(requests, options.block_tokens)
    return Trace(name=path.name, format="lmcache", sessions=sessions, has_times=True)


def lmcache_lines(path: Path) -> Iterator[tuple[str, int, bytes]]:
    """Yield `(file, number, line)` of all lines of a file, a folder or an archive.

    Raises:
        TraceError: If something cannot be read, or an archive holds another kind of file.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if plain_suffix(file) == ".jsonl")
        if not files:
            raise TraceError("no .jsonl file in the folder", path=str(path))
        for file in files:
            yield from ((str(file), number, line) for number, line in read_lines(file))
    elif is_archive(path):
        yield from _members(path)
    else:
        yield from ((str(path), number, line) for number, line in read_lines(path))


def is_archive(path: Path) -> bool:
    """Return whether a file's name says that it is a tar archive."""
    return plain_suffix(path) == ".tar" or path.suffix.lower() in (".tgz", ".txz")


def _members(path: Path) -> Iterator[tuple[str, int, bytes]]:
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                where = f"{path}:{member.name}"
                if member.isdir():
                    continue
                content = archive.extractfile(member) if member.isfile() else None
                if content is None or not member.name.endswith(".jsonl"):
                    raise TraceError("no .jsonl file, in a trace archive", path=where)
                for number, line in number_lines(content, where):
                    yield where, number, line
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise TraceError(f"cannot be read: {error}", path=str(path)) from error


def _tokens(request: _Request, encoder: Encoder) -> TextRequest:
    prompt, answer = encoder.split(request.input, request.output)
    return TextRequest(
        session=request.session_id,
        at_s=0.0,
        prompt=prompt,
        answer=answer,
        output_tokens=len(answer),
    )
