"""Markup as strings that are escaped once; knows elements and attributes, and no page."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is markup already, and is not escaped again."""

    __slots__ = ()


# Elements of HTML that have no end tag.
_VOID = frozenset({"meta", "br", "hr", "col"})

Child = str | Markup | None
Attribute = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Build an element.

    Args:
        name: Its name.
        children: Text, which is escaped, or markup; None is left out.
        attributes: By name; `_` stands for `-`, and one at the end is dropped (`class_`). None and
            False leave an attribute out, True gives it without a value.

    Returns:
        The element.
    """
    opening = name + "".join(_attribute(*pair) for pair in attributes.items())
    inside = join(*children)
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{inside}</{name}>")


def join(*parts: Child, between: str = "") -> Markup:
    """Put parts behind one another.

    Args:
        parts: Text, which is escaped, or markup; None is left out.
        between: Text between them.
    """
    texts = [
        part if isinstance(part, Markup) else escape(part) for part in parts if part is not None
    ]
    return Markup(escape(between).join(texts))


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = short(value) if isinstance(value, float) else escape(str(value), quote=True)
    return f' {name}="{text}"'


def short(value: float) -> str:
    """Write a coordinate with one decimal at most."""
    rounded = round(value, 1)
    return str(int(rounded)) if rounded == int(rounded) else f"{rounded:.1f}"
