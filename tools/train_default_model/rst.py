"""Plain text and facts from reStructuredText: inline markup removed, described names picked out.

Knows the small part of reST that Python's documentation uses; no documents and no chats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ROLE = re.compile(r":(?:[a-z0-9+]+:)*([a-zA-Z0-9_+-]+):`([^`]*)`")
_TARGET = re.compile(r"^(.*?)\s*<[^<>]*>$", re.DOTALL)
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_NAMED_LINK = re.compile(r"(?<![:`])`([^`<:]+)`__?(?![\w`])")
_LITERAL = re.compile(r"``([^`]+)``")
_STRONG = re.compile(r"\*\*([^*\n]+)\*\*")
_EMPHASIS = re.compile(r"(?<![\w*`\\])\*([^*\s`](?:[^*\n`]*[^*\s`])?)\*(?![\w*])")
_PROSE_ROLES = frozenset({"ref", "term", "doc", "pep", "rfc", "abbr", "dfn", "guilabel", "source"})
_DIRECTIVE = re.compile(
    r"^( *)\.\. (?:py:|c:)?(function|decorator|method|classmethod|staticmethod|class|exception|"
    r"data|attribute|macro|type|module|currentmodule|opcode)::\s*(.*)$"
)
_HEADING_MARKS = frozenset("=-~^*\"'#+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A name that a document describes.

    Attributes:
        kind: The directive, such as `function`; `term` and `question` for the two lists.
        owner: The module or class that it belongs to; may be empty.
        name: The name without arguments, a term or a question.
        arguments: What stands between the brackets; None where there are none.
        paragraphs: One to three paragraphs of plain text.
    """

    kind: str
    owner: str
    name: str
    arguments: str | None
    paragraphs: tuple[str, ...]


def plain_text(text: str) -> str:
    """Return the text with its inline markup replaced by plain words and backticks."""
    text = _NAMED_LINK.sub(lambda match: match.group(1), text)
    text = _ROLE.sub(_role_text, text)
    text = _LINK.sub(lambda match: match.group(1), text)
    text = _LITERAL.sub(lambda match: f"`{match.group(1)}`", text)
    text = _STRONG.sub(r"\1", text)
    text = _EMPHASIS.sub(r"`\1`", text)
    return text.replace("\\ ", "")


def _role_text(match: re.Match[str]) -> str:
    role, content = match.groups()
    target = _TARGET.match(content)
    if target:
        content = target.group(1)
    elif content.startswith("~"):
        content = content.rpartition(".")[2] or content[1:]
    content = content.lstrip("!~.")
    if role in ("pep", "rfc"):
        return f"{role.upper()} {content}"
    return content if role in _PROSE_ROLES else f"`{content}`"


def described(text: str) -> Iterator[Described]:
    """Yield the functions, classes, modules and so on that a document describes.

    Args:
        text: reST, with its markup.
    """
    lines = text.split("\n")
    module, owners = "", []  # owners: (indent, class name) of the directives that are open
    for index, line in enumerate(lines):
        match = _DIRECTIVE.match(line)
        if match is None:
            continue
        indent, kind, rest = len(match.group(1)), match.group(2), match.group(3).strip()
        if kind in ("module", "currentmodule"):
            module = rest
            owners.clear()
        while owners and owners[-1][0] >= indent:
            owners.pop()
        name, arguments = _signature(rest)
        owner = owners[-1][1] if owners else module
        if kind in ("class", "exception"):
            owners.append((indent, name))
        if kind == "module":
            paragraphs = _synopsis(lines[index + 1 : index + 6])
        else:
            paragraphs = _body(lines, index + 1, indent)
        if name and paragraphs and kind != "currentmodule":
            yield Described(
                kind=kind,
                owner="" if kind == "module" else owner,
                name=name,
                arguments=arguments,
                paragraphs=paragraphs,
            )


def glossary_terms(text: str) -> Iterator[Described]:
    """Yield the terms of a `glossary` directive."""
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if re.match(r"^   \S", line) and not line.strip().startswith((".", "`", ">")):
            paragraphs = _body(lines, index + 1, 3)
            if paragraphs:
                yield Described(
                    kind="term",
                    owner="",
                    name=line.strip(),
                    arguments=None,
                    paragraphs=paragraphs,
                )


def questions(text: str) -> Iterator[Described]:
    """Yield the headings that are questions, with the paragraphs below them."""
    lines = text.split("\n")
    for index, line in enumerate(lines[:-1]):
        mark = lines[index + 1]
        if line.endswith("?") and len(mark) >= 3 and set(mark) <= _HEADING_MARKS:
            paragraphs = _body(lines, index + 2, -1)
            if paragraphs:
                yield Described(
                    kind="question",
                    owner="",
                    name=plain_text(line),
                    arguments=None,
                    paragraphs=paragraphs,
                )


def _signature(text: str) -> tuple[str, str | None]:
    text = text.rstrip("\\").strip()
    name, bracket, rest = text.partition("(")
    name = name.split()[-1] if name.split() else ""
    if not bracket or not rest.endswith(")"):
        return name, None
    return name, rest[:-1].replace("\\", "")


def _synopsis(lines: list[str]) -> tuple[str, ...]:
    for line in lines:
        if line.strip().startswith(":synopsis:"):
            return (plain_text(line.partition(":synopsis:")[2].strip()).rstrip(".") + ".",)
    return ()


def _body(lines: list[str], start: int, indent: int) -> tuple[str, ...]:
    """Return the first paragraphs of prose below a directive, as single lines."""
    paragraphs: list[str] = []
    block: list[str] = []
    # What follows a directive without an empty line is more signatures and options.
    is_head = indent >= 0
    for line in [*lines[start : start + 60], ""]:
        if line.strip():
            depth = len(line) - len(line.lstrip())
            if depth <= indent and not is_head:
                break
            block.append(line)
            continue
        if block and not (is_head and indent != 3):
            text = _paragraph(block, indent)
            if text is None:
                break
            if text:
                paragraphs.append(text)
        block = []
        is_head = False
        if len(paragraphs) == 3:
            break
    return tuple(paragraphs)


def _paragraph(block: list[str], indent: int) -> str | None:
    """Return a paragraph as one line; "" if it is no prose, None where the prose ends."""
    first = block[0]
    depth = len(first) - len(first.lstrip())
    if depth <= indent:
        return None
    if len(block) > 1 and set(block[1].strip()) <= _HEADING_MARKS:
        return None
    text = plain_text(" ".join(line.strip() for line in block))
    if text.startswith((".. note::", ".. versionadded", ":")):
        return ""
    starts_well = text[0].isupper() or text[0] in "`"
    if not starts_well or not text.endswith((".", ")")) or not 25 <= len(text) <= 700:
        return None
    return text
