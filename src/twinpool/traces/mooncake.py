"""Reader of Mooncake traces: requests with times and global hashes of 512-token blocks.

Knows no session: the source names none, so that every request is a session of one turn.

Source: kvcache-ai/Mooncake (FAST'25), `hash_ids` of blocks that hash all tokens before them too;
the last block may be partial.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from twinpool.errors import TraceError
from twinpool.traces import runs
from twinpool.traces.lines import Seconds, Tokens, decode, read_lines
from twinpool.traces.schema import Session, Trace, Turn

BLOCK_TOKENS = 512


class _Request(msgspec.Struct):
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int]


def read_mooncake(path: Path) -> Trace:
    """Read a file of JSON lines, one request each.

    Args:
        path: The file; may end in `.gz` or `.xz`.

    Returns:
        One session per request, named by its line's number, in the file's order; ids are global.

    Raises:
        TraceError: If a line is no request, or its ids are not as many as its blocks.
    """
    sessions = tuple(
        _session(decode(line, _Request, "a request", path=str(path), number=number), path, number)
        for number, line in read_lines(path)
    )
    return Trace(name=path.name, format="mooncake", sessions=sessions, has_times=True)


def _session(request: _Request, path: Path, number: int) -> Session:
    try:
        blocks = runs.plain_ids(
            request.hash_ids, runs.all_blocks(request.input_length, BLOCK_TOKENS)
        )
    except runs.BadRuns as error:
        raise TraceError(
            f"hash_ids: {error} for {request.input_length} tokens in blocks of {BLOCK_TOKENS}",
            path=str(path),
            line=number,
        ) from None
    turn = Turn(
        start_s=0.0,
        think_s=0.0,
        blocks=blocks,
        input_tokens=request.input_length,
        output_tokens=request.output_length,
        is_think_recorded=False,
    )
    return Session(
        name=str(number),
        block_tokens=BLOCK_TOKENS,
        turns=(turn,),
        start_s=request.timestamp / 1000,
    )
