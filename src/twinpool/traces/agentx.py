"""Reader of AgentX sessions: agentic coding recorded as block hashes, one session per line or file.

Reads the public raw form (plain `hash_ids`) and the compact one (`[start, length, ...]`); knows
nothing of what replays them.

Source: callanjfox/kv-cache-tester, the session files of the AgentX corpus.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from twinpool.errors import TraceError
from twinpool.traces.schema import BlockArray, Session, Turn


class _Request(msgspec.Struct):
    type: str
    t: float
    input_tokens: int = msgspec.field(name="in", default=0)
    output_tokens: int = msgspec.field(name="out", default=0)
    hash_ids: list[int] = []
    think_time: float = 0.0
    agent_id: str = ""
    requests: list[_Request] = []


class _Session(msgspec.Struct):
    id: str
    block_size: int
    requests: list[_Request]


def read_sessions(path: Path, *, is_run_length: bool) -> Iterator[Session]:
    """Read sessions from a file of JSON lines, gzipped or not.

    Args:
        path: The file; one session per line.
        is_run_length: True when `hash_ids` is `[start, length, start, length, ...]`.

    Yields:
        Sessions in the file's order.

    Raises:
        TraceError: If the file cannot be read or a line is no session; names the line.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _session(line, str(path), number, is_run_length)
    except (OSError, EOFError) as error:
        raise TraceError(f"cannot be read: {error}", path=str(path)) from error


def _session(line: bytes, path: str, number: int, is_run_length: bool) -> Session:
    try:
        raw = msgspec.json.decode(line, type=_Session)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"not a session: {error}", path=path, line=number) from error
    if raw.block_size < 1:
        raise TraceError(f"block_size is {raw.block_size}", path=path, line=number)

    def build(name: str, requests: list[_Request]) -> Session:
        turns, children = [], []
        for request in requests:
            if request.type == "subagent":
                children.append(build(f"{name}/{request.agent_id}", request.requests))
                continue
            turns.append(
                Turn(
                    start_s=request.t,
                    think_s=request.think_time,
                    blocks=_blocks(request, path, number, is_run_length, raw.block_size),
                    input_tokens=request.input_tokens,
                    output_tokens=request.output_tokens,
                )
            )
        return Session(
            name=name, block_tokens=raw.block_size, turns=tuple(turns), children=tuple(children)
        )

    return build(raw.id, raw.requests)


def _blocks(
    request: _Request, path: str, line: int, is_run_length: bool, block_size: int
) -> BlockArray:
    try:
        ids = np.array(request.hash_ids, dtype=np.int64)
    except OverflowError:
        raise TraceError("a block id is outside 32 bits", path=path, line=line) from None
    lengths = ids[1::2] if is_run_length else np.ones_like(ids)
    if is_run_length and (len(ids) % 2 or (len(ids) and lengths.min() < 1)):
        raise TraceError("hash_ids are not pairs of start and length", path=path, line=line)
    # Before anything is spelled out: a line must not make arrays larger than it says it is.
    num_blocks = sum(lengths.tolist())
    if num_blocks != request.input_tokens // block_size:
        raise TraceError(
            f"{num_blocks} blocks of {block_size} for {request.input_tokens} tokens",
            path=path,
            line=line,
        )
    starts = ids[::2] if is_run_length else ids
    # The lengths are small by now: no sum below wraps once the starts are in range.
    is_inside = ((starts >= 0) & (starts < 2**31)).all() and (starts + lengths <= 2**31).all()
    if not is_inside:
        raise TraceError("a block id is outside 32 bits", path=path, line=line)
    if is_run_length:
        offsets = np.arange(num_blocks) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        ids = np.repeat(starts, lengths) + offsets
    return ids.astype(np.int32)
