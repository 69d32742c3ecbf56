"""A chat on its way to the model: rendered, tokenised, marked where it may be repeated.

Knows no HTTP and no scheduler. The marks (boundaries) say where checkpoints are worth having:

    preamble   what every chat with this system prompt and these tools begins with
    history    what the next turn of this chat sends again; the generation prompt, and reasoning
               that templates drop, come after it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from twinpool.engine.boundaries import BoundaryFinder
from twinpool.engine.template import ChatTemplate, Message
from twinpool.engine.tokenizer import Tokenizer
from twinpool.engine.tokenizer_files import DEFAULT_TEMPLATE
from twinpool.errors import ConfigError

_TOOL_TEMPLATE = "tool_use"
_PREAMBLE_ROLES = ("system", "developer")
# What others might write in a place. Two with different first characters: what a prompt shares
# with both, it shares by the template and not by chance.
_STAND_INS = ("Quite so", "7 of them")


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as the model reads it.

    Attributes:
        tokens: Token ids of the whole prompt.
        boundaries: Depths that later prompts are likely to repeat unchanged, rising, each in
            `[1, len(tokens) - 1]`.
        text: The rendered text.
    """

    tokens: list[int]
    boundaries: tuple[int, ...]
    text: str


class ChatRenderer:
    """Renders messages with a model's chat template and tokenises them.

    Safe to use from several threads.

    Args:
        tokenizer: The model's; it brings the templates.

    Raises:
        ConfigError: If there is no template, or one cannot be used.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        sources = tokenizer.chat_templates
        if DEFAULT_TEMPLATE not in sources:
            raise ConfigError(
                "the model has no chat template",
                hint="put chat_template.jinja beside tokenizer.json, or use /v1/completions",
            )
        self._default = ChatTemplate(sources[DEFAULT_TEMPLATE], tokenizer.special_tokens)
        self._with_tools = (
            ChatTemplate(sources[_TOOL_TEMPLATE], tokenizer.special_tokens)
            if _TOOL_TEMPLATE in sources
            else self._default
        )
        self._finder = BoundaryFinder(tokenizer)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, **variables: Any
    ) -> RenderedChat:
        """Return the prompt of a chat.

        Args:
            messages: See `ChatTemplate.render`.
            add_generation_prompt: Whether the assistant's turn is opened.
            variables: `tools` and whatever else the template knows, such as `enable_thinking`.

        Raises:
            ConfigError: If the template refuses the messages.

        Cost:
            Up to five renderings, one tokenisation, and tails of a few tokens.
        """
        template = self._with_tools if variables.get("tools") else self._default

        def rendered(chat: Sequence[Message]) -> str:
            return template.render(chat, add_generation_prompt=add_generation_prompt, **variables)

        text = rendered(messages)
        groups = []
        for chats in _variants(messages, has_tools=bool(variables.get("tools"))):
            try:
                groups.append([rendered(chat) for chat in chats])
            except ConfigError:
                # A template that refuses the stand-ins leaves the prompt without this boundary.
                continue
        tokens, boundaries = self._finder.tokenize(text, groups)
        return RenderedChat(tokens, boundaries, text)


def _variants(messages: Sequence[Message], *, has_tools: bool) -> Iterator[list[list[Message]]]:
    """Yield the groups of chats that begin like this one: other chats, and its own next turn."""
    preamble = list(takewhile(lambda message: message.get("role") in _PREAMBLE_ROLES, messages))
    if preamble or has_tools:
        yield [[*preamble, {"role": "user", "content": words}] for words in _STAND_INS]
    yield [
        [
            *messages,
            {"role": "assistant", "content": words},
            {"role": "user", "content": words},
        ]
        for words in _STAND_INS
    ]
