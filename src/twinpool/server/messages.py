"""Chat messages on their way to the template: roles, parts, and what is refused.

Knows no template; the renderer is handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twinpool.server.errors import bad_request, unsupported
from twinpool.server.schema import ChatMessage
from twinpool.server.service import TextTools, off_loop
from twinpool.server.text import RenderedChat

# `developer` is the newer name of `system`; templates know the older one.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# `self` is what the renderer itself is called where the variables are passed on.
_RESERVED = frozenset(
    {"self", "messages", "add_generation_prompt", "tools", "bos_token", "eos_token"}
)


async def render_chat(
    tools: TextTools,
    messages: Sequence[ChatMessage],
    variables: dict[str, Any] | None,
    *,
    add_generation_prompt: bool,
) -> RenderedChat:
    """Return a chat as the model reads it.

    Args:
        tools: The template and the tokenizer.
        messages: At least one.
        variables: More variables for the template, such as `enable_thinking`.
        add_generation_prompt: Whether the assistant's turn is opened.

    Raises:
        ApiError: 400 that names the message at fault.
        ConfigError: If the template refuses the messages.
    """
    if tools.chat is None:
        raise unsupported("chat", "messages", "the model has no chat template")
    renderer = tools.chat
    plain = [_plain(message, number) for number, message in enumerate(messages)]
    more = dict(variables or {})
    for name in more:
        if name in _RESERVED or not name.isidentifier():
            raise bad_request(
                f"chat_template_kwargs: {name[:40]!r} cannot be set", "chat_template_kwargs"
            )
    num_chars = sum(len(message.get("content") or "") for message in plain)
    return await off_loop(
        lambda: renderer.render(plain, add_generation_prompt=add_generation_prompt, **more),
        num_chars,
    )


def _plain(message: ChatMessage, number: int) -> dict[str, Any]:
    where = f"messages.{number}"
    role = ROLES.get(message.role)
    if role is None:
        raise bad_request(
            f"{where}.role is {message.role[:40]!r}; use one of {', '.join(ROLES)}", f"{where}.role"
        )
    content = message.content
    has_calls = bool((message.model_extra or {}).get("tool_calls"))
    if content is None and not (role == "assistant" and has_calls):
        raise bad_request(f"{where}.content is missing", f"{where}.content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content.{n}") for n, part in enumerate(content))
    return {**(message.model_extra or {}), "role": role, "content": content or ""}


def _part(part: dict[str, Any], where: str) -> str:
    kind = part.get("type")
    if kind != "text":
        shown = kind[:40] if isinstance(kind, str) else type(kind).__name__
        raise unsupported(f"content of type {shown!r}", where, "only 'text' is")
    text = part.get("text")
    if not isinstance(text, str):
        raise bad_request(f"{where}.text is missing", where)
    return text
