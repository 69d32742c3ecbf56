"""Chats from recorded agent runs: customer service (tau-bench), software repair (mini-swe-agent).

Knows the shape of the LMCache agent trace; `twinpool.traces` reads it for replays, this module
takes it apart into turns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from twinpool.traces.lmcache import lmcache_lines

Chat = list[dict[str, str]]

_GREETING = "Hi! How can I help you today?"
_STOP = "###STOP###"
_MAX_PROMPT_CHARACTERS = 1200
_MAX_ANSWER_CHARACTERS = 1500
_TAG = re.compile(r"</?(?:format_example|example_response|response_example)>\n?")


class _Request(msgspec.Struct):
    timestamp: int
    input: str
    output: str
    session_id: str


def sessions(archive: Path) -> Iterator[tuple[str, list[_Request]]]:
    """Yield `(session, requests)` of an archive, requests by time.

    Args:
        archive: `taubench.tar.xz` or `miniswe.tar.xz`.
    """
    groups: dict[str, list[_Request]] = {}
    for _, _, line in lmcache_lines(archive):
        request = msgspec.json.decode(line, type=_Request)
        groups.setdefault(request.session_id, []).append(request)
    for name in sorted(groups):
        yield name, sorted(groups[name], key=lambda request: request.timestamp)


def chats(requests: Sequence[_Request], *, is_service: bool) -> Iterator[Chat]:
    """Yield the chats of a session that have an answer.

    Args:
        requests: Of one session, by time.
        is_service: Whether it is of tau-bench; otherwise of mini-swe-agent.
    """
    found = [_service_chat(requests)] if is_service else _repair_chats(requests)
    yield from (chat for chat in found if len(chat) >= 2)


def _service_chat(requests: Sequence[_Request]) -> Chat:
    """Return a tau-bench session as a chat.

    The trace holds both sides: requests that begin with the agent's greeting are the customer's,
    whose answer is what the customer says.
    """
    chat: Chat = []
    for request in requests:
        text = request.output.strip()
        if not text or text == _STOP:
            continue
        role = "user" if request.input.startswith(_GREETING) else "assistant"
        if role == "assistant" and len(text) > _MAX_ANSWER_CHARACTERS:
            continue
        if chat and chat[-1]["role"] == role:
            # A call of a tool, then words: the words are the answer.
            chat[-1]["content"] = text
        elif chat or role == "user":
            chat.append({"role": role, "content": text})
    return chat[:-1] if chat and chat[-1]["role"] == "user" else chat


def _repair_chats(requests: Sequence[_Request]) -> Iterator[Chat]:
    """Yield the steps of a mini-swe-agent session, two at a time, as chats.

    What a step adds to the one before is the user's message, cut to its end; the instructions that
    every session begins with are left out.
    """
    seen = ""
    chat: Chat = []
    for request in requests:
        answer = _TAG.sub("", request.output).strip()
        if request.input.startswith(seen):
            prompt = request.input[len(seen) :]
        else:
            prompt = request.input[-_MAX_PROMPT_CHARACTERS:]
        if not seen:
            prompt = prompt.partition("<instructions>")[0]
            prompt = prompt.replace("<pr_description>", "").replace("</pr_description>", "")
        # The next prompt repeats this one and its answer.
        seen = request.input
        prompt = prompt.replace(request.output, "").strip()
        if not answer or not prompt or len(answer) > _MAX_ANSWER_CHARACTERS:
            continue
        if len(prompt) > _MAX_PROMPT_CHARACTERS:
            prompt = prompt[: _MAX_PROMPT_CHARACTERS // 2] + "\n...\n" + prompt[-500:]
        chat += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        if len(chat) >= 4:
            yield chat
            chat = []
    if chat:
        yield chat
