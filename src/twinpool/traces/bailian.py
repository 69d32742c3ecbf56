"""Reader of Qwen-Bailian traces: chats of a cloud service with times and hashes of 16-token blocks.

Knows nothing of what the service did; it records no answer's end, so that a turn's pause is the
whole gap since the turn before.

Source: alibaba-edu/qwen-bailian-usagetraces-anon. `hash_ids` are hashes of a block's own tokens:
the reader numbers them with all blocks before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from twinpool.errors import TraceError
from twinpool.traces import runs
from twinpool.traces.lines import Seconds, Tokens, decode, read_lines
from twinpool.traces.numbering import PrefixNumbering, spell_out
from twinpool.traces.schema import BlockArray, Session, Trace, Turn

BLOCK_TOKENS = 16
NO_PARENT = -1


class _Request(msgspec.Struct):
    chat_id: int
    parent_chat_id: int
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int]
    type: str
    turn: int


@dataclass(frozen=True, slots=True)
class _Chat:
    raw: _Request
    blocks: BlockArray
    line: int


def read_bailian(path: Path) -> Trace:
    """Read a file of JSON lines, one request each.

    Args:
        path: The file; may end in `.gz` or `.xz`.

    Returns:
        One session per conversation, named by its first `chat_id`, in the order in which they
        appear; its turns are all requests that follow from that chat, by time. A chat whose parent
        came before the trace began starts a session of the parent's name. Ids are global.

    Raises:
        TraceError: If a line is no request, its ids are not as many as its blocks, a chat is there
            twice, or chats are each other's parents.
    """
    chats: dict[int, _Chat] = {}
    numbering = PrefixNumbering()
    for number, line in read_lines(path):
        request = decode(line, _Request, "a request", path=str(path), number=number)
        if request.chat_id in chats:
            raise TraceError(
                f"chat_id {request.chat_id} is also on line {chats[request.chat_id].line}",
                path=str(path),
                line=number,
            )
        ids = _ids(request, path, number)
        chats[request.chat_id] = _Chat(request, spell_out(numbering.add(ids)[0]), number)
    sessions: dict[int, list[_Chat]] = {}
    roots: dict[int, int] = {}
    for chat_id, chat in chats.items():
        sessions.setdefault(_root(chat_id, chats, roots, path), []).append(chat)
    return Trace(
        name=path.name,
        format="bailian",
        sessions=tuple(_session(root, members) for root, members in sessions.items()),
        has_times=True,
    )


def _ids(request: _Request, path: Path, number: int) -> BlockArray:
    try:
        return runs.plain_ids(
            request.hash_ids, runs.either_blocks(request.input_length, BLOCK_TOKENS)
        )
    except runs.BadRuns as error:
        raise TraceError(
            f"hash_ids: {error} for {request.input_length} tokens in blocks of {BLOCK_TOKENS}",
            path=str(path),
            line=number,
        ) from None


def _root(chat_id: int, chats: dict[int, _Chat], roots: dict[int, int], path: Path) -> int:
    """Find the chat that a conversation began with; `roots` remembers those found."""
    way: list[int] = []
    seen: set[int] = set()
    current = chat_id
    while current not in roots:
        if current in seen:
            raise TraceError(
                f"chat_id {current} is among its own parents",
                path=str(path),
                line=chats[current].line,
            )
        way.append(current)
        seen.add(current)
        parent = chats[current].raw.parent_chat_id if current in chats else NO_PARENT
        if parent == NO_PARENT:
            break
        current = parent
    root = roots.get(current, current)
    roots.update(dict.fromkeys(way, root))
    return root


def _session(root: int, members: list[_Chat]) -> Session:
    chats = sorted(members, key=lambda chat: chat.raw.timestamp)
    start_s = chats[0].raw.timestamp
    turns = []
    previous_s = start_s
    for chat in chats:
        sent_s = chat.raw.timestamp
        turns.append(
            Turn(
                start_s=sent_s - start_s,
                think_s=sent_s - previous_s,
                blocks=chat.blocks,
                input_tokens=chat.raw.input_length,
                output_tokens=chat.raw.output_length,
                is_think_recorded=False,
            )
        )
        previous_s = sent_s
    return Session(name=str(root), block_tokens=BLOCK_TOKENS, turns=tuple(turns), start_s=start_s)
