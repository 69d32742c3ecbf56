"""Chat templates: messages to one text, by the checkpoint's own Jinja template, in a sandbox.

Knows no tokens. The template sees what it would see in `transformers`; nothing that it does can
reach the process, and whatever it raises is the client's error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from twinpool.errors import ConfigError

Message = Mapping[str, Any]

_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
_KEEPS_ARGUMENT_TEXT = re.compile(r"arguments\s+is\s+(not\s+)?string")


class ChatTemplate:
    """One compiled template.

    Args:
        source: Jinja text, as checkpoints have it.
        special_tokens: `bos_token`, `eos_token` and so on, which the template may name.

    Raises:
        ConfigError: If it is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template cannot be used: {error}",
                hint="copy the checkpoint's chat_template.jinja again",
            ) from error
        self._special_tokens = dict(special_tokens)
        # Templates print a call's arguments as they are, or go through them as a mapping.
        self._keeps_argument_text = bool(_KEEPS_ARGUMENT_TEXT.search(source))

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, **variables: Any
    ) -> str:
        """Return the text of a chat.

        Args:
            messages: Role and content; content is a text or a list of text parts. Keys that are
                None count as absent. Arguments of tool calls, which clients send as JSON text,
                become mappings where the template does not print them as they are.
            add_generation_prompt: Whether the assistant's turn is opened.
            variables: `tools`, `documents` and whatever else the template knows.

        Raises:
            ConfigError: If a message cannot be read, or the template refuses the chat; the message
                is the template's.
        """
        plain = [self._plain(message, number) for number, message in enumerate(messages)]
        given = {"tools": None, "documents": None, **variables}
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **given,
                    "messages": plain,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template says: {error}") from error
        except Exception as error:  # a template can raise anything on what a client sends
            raise ConfigError(
                f"the chat template fails on these messages: {type(error).__name__}: {error}"
            ) from error

    def _plain(self, message: Message, number: int) -> dict[str, Any]:
        """Return a message as templates expect it; the caller's stays as it is."""
        where = f"messages[{number}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ConfigError(f"{where} has no role", hint="send an object with role and content")
        plain = {key: value for key, value in message.items() if value is not None}
        content = plain.get("content")
        if content is not None:
            plain["content"] = _content_text(content, where)
        reasoning = next((plain[key] for key in _REASONING_NAMES if key in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        if plain.get("tool_calls") and not self._keeps_argument_text:
            plain["tool_calls"] = [
                _with_parsed_arguments(call, f"{where}.tool_calls[{index}]")
                for index, call in enumerate(plain["tool_calls"])
            ]
        return plain


def _content_text(content: object, where: str) -> str:
    """Return the text of a message's content: parts follow each other without a separator."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        raise ConfigError(
            f"{where}.content is a {type(content).__name__}",
            hint="send a string, or a list of parts of type text",
        )
    for index, part in enumerate(content):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ConfigError(
                f"{where}.content[{index}] is of type {part.get('type')!r}",
                hint="only parts of type text are served: {'type': 'text', 'text': ...}",
            )
    return "".join(part["text"] for part in content)


def _with_parsed_arguments(call: object, where: str) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise ConfigError(f"{where} names no function", hint="send function.name and .arguments")
    text = function.get("arguments")
    if not isinstance(text, str):
        return call
    try:
        arguments = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"{where}.function.arguments is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ConfigError(f"{where}.function.arguments is no JSON object")
    return {**call, "function": {**function, "arguments": arguments}}


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the environment that templates are written for.

    Source:
        `chat_template_utils` of transformers 5.24. Ours leaves out the tracking of assistant
        spans, for training; its `generation` tag is there and does nothing.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`: its body, as it is."""

    tags = {"generation"}  # noqa: RUF012 - declared as an instance variable by Jinja

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which models have not been trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
