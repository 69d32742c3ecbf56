"""Reader of AgentX sessions: agentic coding recorded as block hashes, one session per line or file.

Reads the public raw form (plain `hash_ids`, a folder of files) and the compact one
(`[start, length, ...]`), and tells them apart; knows nothing of what replays them.

Source: callanjfox/kv-cache-tester, the session files of the AgentX corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from twinpool.errors import TraceError
from twinpool.traces import runs
from twinpool.traces.lines import (
    MAX_NESTING,
    BlockTokens,
    Seconds,
    Tokens,
    decode,
    plain_suffix,
    read_document,
    read_lines,
)
from twinpool.traces.schema import BlockArray, Session, Trace, Turn

TURN_TYPES = ("n", "s")
SUBAGENT = "subagent"


class _Request(msgspec.Struct):
    type: str
    start_s: Seconds = msgspec.field(name="t")
    input_tokens: Tokens | None = msgspec.field(name="in", default=None)
    output_tokens: Tokens | None = msgspec.field(name="out", default=None)
    hash_ids: list[int] = []
    think_s: Seconds | None = msgspec.field(name="think_time", default=None)
    answer_s: Seconds | None = msgspec.field(name="api_time", default=None)
    agent_id: str = ""
    requests: list[_Request] = []


class _Session(msgspec.Struct):
    id: str
    block_size: BlockTokens
    requests: list[_Request]
    hash_id_scope: str = "local"


@dataclass(frozen=True, slots=True)
class _Line:
    """One session as decoded, and where it stands."""

    raw: _Session
    path: str
    number: int

    def fault(self, message: str) -> TraceError:
        return TraceError(message, path=self.path, line=self.number)


def read_agentx(path: Path) -> Trace:
    """Read a corpus: a folder of JSON files, a JSON file of one session, or JSON lines.

    Args:
        path: The folder or file; files may end in `.gz` or `.xz`.

    Returns:
        Sessions in the order of lines, or of file names. Ids are local to a session and what it
        started, unless it says that they are global.

    Raises:
        TraceError: If anything cannot be read; names file and line.
    """
    sessions = tuple(read_sessions(path))
    return Trace(name=path.name, format="agentx", sessions=sessions, has_times=False)


def read_sessions(path: Path, *, is_run_length: bool | None = None) -> Iterator[Session]:
    """Read the sessions of a corpus one by one.

    Args:
        path: The folder or file.
        is_run_length: True when `hash_ids` is `[start, length, start, length, ...]`, False when it
            is plain, None to find out: each file by its first request that is only one of both.

    Yields:
        Sessions in the order of the source.

    Raises:
        TraceError: If a file cannot be read or a line is no session; names the line.
    """
    form = is_run_length
    waiting: list[_Line] = []
    previous = ""
    names: set[str] = set()
    for line in _lines(path):
        if line.raw.id in names:
            # Ids are local to a session: two of one name would share what they do not have.
            raise line.fault(f"the session {line.raw.id[:80]!r} is there twice")
        names.add(line.raw.id)
        if line.path != previous:
            yield from (_session(early, False) for early in waiting)
            waiting, form, previous = [], is_run_length, line.path
        if form is None:
            form = _form(line)
        if form is None:
            waiting.append(line)
            continue
        for early in (*waiting, line):
            yield _session(early, form)
        waiting = []
    # Where nothing tells, one reading fits as well as the other: take the published form.
    yield from (_session(early, False) for early in waiting)


def _lines(path: Path) -> Iterator[_Line]:
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.is_file())
        sessions = [file for file in files if plain_suffix(file) == ".json"]
        if not sessions:
            raise TraceError("no .json file in the folder", path=str(path))
        for file in sessions:
            yield _decode(read_document(file), str(file), 1)
    elif plain_suffix(path) == ".json":
        yield _decode(read_document(path), str(path), 1)
    else:
        for number, line in read_lines(path):
            yield _decode(line, str(path), number)


def _decode(text: bytes, path: str, number: int) -> _Line:
    line = _Line(decode(text, _Session, "a session", path=path, number=number), path, number)
    if line.raw.hash_id_scope not in ("local", "global"):
        raise line.fault(f"hash_id_scope is {line.raw.hash_id_scope[:40]!r}, not local or global")
    return line


def _form(line: _Line) -> bool | None:
    """Tell the form of the ids by their count; None when all of the session fits both or neither.

    A wrong guess cannot pass: the count of the other form is then wrong too.
    """
    for request in _turns(line.raw.requests):
        expected = (request.input_tokens or 0) // line.raw.block_size
        is_plain = len(request.hash_ids) == expected
        is_pairs = len(request.hash_ids) % 2 == 0 and sum(request.hash_ids[1::2]) == expected
        if is_plain != is_pairs:
            return is_pairs
    return None


def _turns(requests: list[_Request]) -> Iterator[_Request]:
    for request in requests:
        if request.type == SUBAGENT:
            yield from _turns(request.requests)
        else:
            yield request


def _session(line: _Line, is_run_length: bool) -> Session:
    namespace = line.raw.id if line.raw.hash_id_scope == "local" else ""
    read_ids = runs.expand if is_run_length else runs.plain_ids

    def build(name: str, start_s: float, requests: list[_Request], depth: int) -> Session:
        if depth > MAX_NESTING:
            raise line.fault(f"subagents within subagents, more than {MAX_NESTING} deep")
        turns: list[Turn] = []
        children: list[Session] = []
        previous: _Request | None = None
        for request in requests:
            if request.type == SUBAGENT:
                label = f"{name}/{request.agent_id or 'agent'}"
                if any(child.name == label for child in children):
                    label = f"{label}~{len(children) + 1}"
                children.append(build(label, request.start_s, request.requests, depth + 1))
            else:
                turns.append(_turn(line, request, previous, read_ids))
                previous = request
        return Session(
            name=name,
            block_tokens=line.raw.block_size,
            turns=tuple(_share(turns)),
            children=tuple(children),
            start_s=start_s,
            namespace=namespace,
        )

    return build(line.raw.id, 0.0, line.raw.requests, 1)


def _turn(
    line: _Line,
    request: _Request,
    previous: _Request | None,
    read_ids: Callable[[list[int], range], BlockArray],
) -> Turn:
    if request.type not in TURN_TYPES:
        raise line.fault(f"request of the unknown type {request.type[:40]!r}, not n, s or subagent")
    if request.input_tokens is None or request.output_tokens is None:
        raise line.fault(f"the request at t={request.start_s} lacks `in` or `out`")
    block_size = line.raw.block_size
    try:
        blocks = read_ids(request.hash_ids, runs.full_blocks(request.input_tokens, block_size))
    except runs.BadRuns as error:
        raise line.fault(
            f"hash_ids of the request at t={request.start_s}: {error} for {request.input_tokens} "
            f"tokens in blocks of {block_size}"
        ) from None
    think_s = request.think_s
    if think_s is None:
        think_s = 0.0 if previous is None else _gap(previous, request)
    return Turn(
        start_s=request.start_s,
        think_s=think_s,
        blocks=blocks,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        is_think_recorded=request.think_s is not None,
    )


def _gap(previous: _Request, request: _Request) -> float:
    return max(0.0, request.start_s - previous.start_s - (previous.answer_s or 0.0))


def _share(turns: list[Turn]) -> list[Turn]:
    """Let a prompt that the next one goes on with be a view of it; all arrays become read-only.

    A session of 500 turns then holds its context about once and not 500 times.
    """
    shared: list[Turn] = []
    after: BlockArray | None = None
    for turn in reversed(turns):
        blocks = turn.blocks
        if after is not None and np.array_equal(blocks, after[: len(blocks)]):
            turn = replace(turn, blocks=after[: len(blocks)])
        blocks.setflags(write=False)
        after = turn.blocks
        shared.append(turn)
    return shared[::-1]
