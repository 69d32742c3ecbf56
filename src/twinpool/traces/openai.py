"""Reader of OpenAI-style requests: chat or completion bodies as JSON lines, batch files too.

Knows no model's chat template: a prompt is its tools and messages one after the other, each after a
line with its role, which keeps what requests share and not their exact length.

Source: the request bodies of the chat and completions endpoints, and the lines of batch files
(`custom_id`, `body`, and `response` in their outputs).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from twinpool.errors import TraceError
from twinpool.traces.lines import Seconds, Tokens, decode, read_lines
from twinpool.traces.schema import Trace
from twinpool.traces.text_sessions import TextRequest, text_sessions
from twinpool.traces.tokens import Encoder, TextOptions, encoder_of


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Usage(msgspec.Struct):
    completion_tokens: Tokens | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _Answer | None = None


class _Body(msgspec.Struct):
    messages: list[_Message] | None = None
    prompt: str | None = None
    tools: list[dict[str, Any]] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None


class _Line(_Body):
    body: _Body | None = None
    timestamp: Seconds | None = None
    session_id: str | None = None
    response: _Response | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    number: int

    def fault(self, message: str, hint: str = "") -> TraceError:
        return TraceError(message, path=self.path, line=self.number, hint=hint)


def read_openai(path: Path, options: TextOptions) -> Trace:
    """Read a file of JSON lines: `{"messages": [...]}`, `{"prompt": "..."}` or `{"body": {...}}`.

    Args:
        path: The file; may end in `.gz` or `.xz`.
        options: How text becomes blocks, and how long answers are where a line does not say.

    Returns:
        Sessions by `session_id` where lines have one. Otherwise a request that begins with all
        messages of an earlier one is the next turn of its session, unless another request was that
        already. `timestamp` is in seconds. An answer's length is, in this order, its recorded text,
        `usage`, `options.output_tokens`, and the limit that the request set.

    Raises:
        TraceError: If a line is no request, holds other content than text, says nothing of its
            answer, or only some lines have a `timestamp`.
        ConfigError: If the options do not say how tokens are counted.
    """
    encoder = encoder_of(options)
    conversations = _Conversations()
    requests: list[TextRequest] = []
    has_times: bool | None = None
    for number, text in read_lines(path):
        line = decode(text, _Line, "a request", path=str(path), number=number)
        place = _Place(str(path), number)
        if has_times is not None and has_times != (line.timestamp is not None):
            raise place.fault("some lines have a `timestamp` and some have none")
        has_times = line.timestamp is not None
        requests.append(_request(line, options, encoder, conversations, place))
    sessions = text_sessions(requests, options.block_tokens)
    return Trace(name=path.name, format="openai", sessions=sessions, has_times=bool(has_times))


def _request(
    line: _Line,
    options: TextOptions,
    encoder: Encoder,
    conversations: _Conversations,
    place: _Place,
) -> TextRequest:
    body = line.body if line.body is not None else line
    if (body.messages is None) == (body.prompt is None):
        raise place.fault("a request has either `messages` or `prompt`")
    if body.messages is not None and not body.messages:
        raise place.fault("`messages` is empty")
    if body.messages is None:
        parts = [body.prompt or ""]
        session = f"line {place.number}"
        prompt = parts[0]
    else:
        parts = [_tools(body.tools), *(_render(message, place) for message in body.messages)]
        session = conversations.session_of(parts, f"line {place.number}")
        prompt = "".join(parts) + "<|assistant|>\n"
    text = _answer_text(line, place)
    tokens, answer = encoder.split(prompt, text or "")
    return TextRequest(
        session=line.session_id if line.session_id is not None else session,
        at_s=line.timestamp or 0.0,
        prompt=tokens,
        answer=None if text is None else answer,
        output_tokens=_output_tokens(line, body, options, place) if text is None else len(answer),
    )


def _render(message: _Message, place: _Place) -> str:
    content = message.content
    if isinstance(content, list):
        for part in content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise place.fault(f"content of type {str(part.get('type'))[:40]!r}, not text")
        content = "\n".join(part["text"] for part in content)
    calls = "" if not message.tool_calls else f"{_json(message.tool_calls)}\n"
    return f"<|{message.role}|>\n{content or ''}\n{calls}"


def _tools(tools: list[dict[str, Any]] | None) -> str:
    return f"<|tools|>\n{_json(tools)}\n" if tools else ""


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _answer_text(line: _Line, place: _Place) -> str | None:
    answer = line.response.body if line.response is not None else None
    choices = answer.choices if answer is not None else line.choices
    if not choices:
        return None
    if choices[0].message is None:
        return choices[0].text
    return _render(choices[0].message, place).removeprefix(f"<|{choices[0].message.role}|>\n")


def _output_tokens(line: _Line, body: _Body, options: TextOptions, place: _Place) -> int:
    answer = line.response.body if line.response is not None else None
    usage = answer.usage if answer is not None else line.usage
    known = (
        usage.completion_tokens if usage is not None else None,
        options.output_tokens,
        body.max_completion_tokens,
        body.max_tokens,
    )
    for count in known:
        if count is not None:
            return count
    raise place.fault(
        "nothing says how long the answer is: no `choices`, `usage` or `max_tokens`",
        hint="--output-tokens N gives such requests answers of N tokens",
    )


class _Conversations:
    """Which session a request goes on with, by the messages that it repeats."""

    def __init__(self) -> None:
        # A trie of messages: (place before, text) to place; 0 is the root.
        self._places: dict[tuple[int, str], int] = {}
        # Place to the session whose last request ends there.
        self._ends: dict[int, str] = {}

    def session_of(self, parts: list[str], new: str) -> str:
        """Return the session of a request, `new` when it goes on with none."""
        way = [0]
        for part in parts:
            way.append(self._places.setdefault((way[-1], part), len(self._places) + 1))
        session = new
        for place in reversed(way[:-1]):
            if place in self._ends:
                session = self._ends.pop(place)
                break
        self._ends[way[-1]] = session
        return session
