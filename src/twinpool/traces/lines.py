"""Lines of a trace file, plain or compressed by suffix, and JSON errors that name file and line.

Knows no format. A line longer than `MAX_LINE_BYTES` is refused before it is held in memory.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, TypeVar, cast

import msgspec

from twinpool.errors import TraceError

T = TypeVar("T")

MAX_LINE_BYTES = 2**28
# No context is that long: what is larger is a fault of the file, and must not become an array.
MAX_PROMPT_TOKENS = 2**26
MAX_BLOCK_TOKENS = 2**16
# Sessions within sessions.
MAX_NESTING = 32

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_PROMPT_TOKENS)]
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_TOKENS)]
# The upper end keeps infinity out.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield `(number, line)` of a file's lines that are not blank, numbers from 1.

    Args:
        path: The file; `.gz` and `.xz` are unpacked.

    Raises:
        TraceError: If the file cannot be read, or a line is too long.
    """
    try:
        with _open(path) as stream:
            yield from number_lines(stream, str(path))
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise TraceError(f"cannot be read: {error}", path=str(path)) from error


def number_lines(stream: IO[bytes], path: str) -> Iterator[tuple[int, bytes]]:
    """Yield `(number, line)` of a stream's lines that are not blank.

    Args:
        stream: Read to its end.
        path: What errors call it.

    Raises:
        TraceError: If a line is longer than `MAX_LINE_BYTES`.
    """
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(
                f"the line is longer than {MAX_LINE_BYTES} bytes", path=path, line=number
            )
        if line.strip():
            yield number, line


def read_document(path: Path) -> bytes:
    """Return a whole file, unpacked.

    Args:
        path: The file; `.gz` and `.xz` are unpacked.

    Raises:
        TraceError: If it cannot be read, or is larger than `MAX_LINE_BYTES`.
    """
    try:
        with _open(path) as stream:
            text = stream.read(MAX_LINE_BYTES + 1)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise TraceError(f"cannot be read: {error}", path=str(path)) from error
    if len(text) > MAX_LINE_BYTES:
        raise TraceError(f"the file is larger than {MAX_LINE_BYTES} bytes", path=str(path))
    return text


def decode(line: bytes, kind: type[T], what: str, *, path: str, number: int) -> T:
    """Decode a line of JSON into a struct.

    Args:
        line: The line.
        kind: The msgspec struct.
        what: What the line should be, for the error: `a session`.
        path: The file.
        number: The line's number.

    Raises:
        TraceError: If it is not JSON, or a field is missing, of another type or out of range.
    """
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not {what}: {error}", path=path, line=number) from error


def plain_suffix(path: Path) -> str:
    """Return the suffix of a file's name without `.gz` or `.xz`, in lower case."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".xz")
    return Path(name).suffix


def _open(path: Path) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")
