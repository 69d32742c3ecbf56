"""Marks of charts as SVG: a figure with its texts, paths, dots, axes; knows no chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twinpool.replay.report.axes import Scale
from twinpool.replay.report.markup import Attribute, Child, Markup, short, tag

Point = tuple[float, float]
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "down", "bar")
# Shapes by their corners, in parts of a radius.
_UPPER_HALF = (
    (-1.0, -0.36),
    (-0.36, -0.36),
    (-0.36, -1.0),
    (0.36, -1.0),
    (0.36, -0.36),
    (1.0, -0.36),
)
_CORNERS: dict[str, tuple[Point, ...]] = {
    "square": ((-0.72, -0.72), (0.72, -0.72), (0.72, 0.72), (-0.72, 0.72)),
    "triangle": ((0.0, -1.0), (0.95, 0.7), (-0.95, 0.7)),
    "diamond": ((0.0, -1.05), (1.05, 0.0), (0.0, 1.05), (-1.05, 0.0)),
    "cross": (*_UPPER_HALF, *((-x, -y) for x, y in _UPPER_HALF)),
    "down": ((0.0, 1.0), (0.95, -0.7), (-0.95, -0.7)),
    "bar": ((-1.0, -0.42), (1.0, -0.42), (1.0, 0.42), (-1.0, 0.42)),
}


def figure(
    name: str, size: tuple[int, int], title: str, description: str, *children: Child
) -> Markup:
    """Build a chart that scales with its column and says what it shows.

    Args:
        name: Identifier in the page.
        size: Width and height in its own pixels.
        title: What is shown, in a line.
        description: What it says, for who does not see it.
        children: Its marks, back to front.
    """
    width, height = size
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *children,
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        id=name,
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def group(*children: Child, **attributes: Attribute) -> Markup:
    """Put marks into one group."""
    return tag("g", *children, **attributes)


def text(x: float, y: float, *content: Child, **attributes: Attribute) -> Markup:
    """Write at a place; `y` is the base line."""
    return tag("text", *content, x=float(x), y=float(y), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: Attribute) -> Markup:
    """Draw a straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **attributes)


def box(
    x: float, y: float, width: float, height: float, *children: Child, **attributes: Attribute
) -> Markup:
    """Draw a rectangle, with what it is called as a child."""
    return tag(
        "rect",
        *children,
        x=float(x),
        y=float(y),
        width=float(width),
        height=float(height),
        **attributes,
    )


def polyline(points: Sequence[Point], **attributes: Attribute) -> Markup:
    """Draw a line through points."""
    return tag("path", d=track(points), **attributes)


def area(top: Sequence[Point], bottom: Sequence[Point], **attributes: Attribute) -> Markup:
    """Fill what lies between two lines."""
    return tag("path", d=f"{track(straight([*top, *reversed(bottom)]))}z", **attributes)


def track(points: Sequence[Point]) -> str:
    """Write points as the `d` of a path; of equal neighbours one is enough."""
    parts: list[str] = []
    for x, y in points:
        part = f"{short(x)} {short(y)}"
        if not parts or parts[-1] != part:
            parts.append(part)
    return "M" + "L".join(parts)


def straight(points: Sequence[Point]) -> list[Point]:
    """Leave out points in the middle of level stretches."""
    kept: list[Point] = []
    for point in points:
        if len(kept) >= 2 and kept[-1][1] == kept[-2][1] == point[1]:
            kept[-1] = point
        else:
            kept.append(point)
    return kept


def marker(shape: int, x: float, y: float, radius: float, *children: Child, class_: str) -> Markup:
    """Draw a dot whose shape tells series apart where colours do not.

    Args:
        shape: Which shape, counted round.
        x: Middle.
        y: Middle.
        radius: Of the circle; other shapes are made to look as large.
        children: What it is called.
        class_: How it is painted.
    """
    name = MARKERS[shape % len(MARKERS)]
    if name == "circle":
        return tag("circle", *children, cx=float(x), cy=float(y), r=radius, class_=class_)
    reach = radius * 1.25
    points = [(x + reach * dx, y + reach * dy) for dx, dy in _CORNERS[name]]
    return tag("path", *children, d=f"{track(points)}z", class_=class_)


def level_lines(
    scale: Scale, values: Iterable[float], left: float, right: float, labels: Sequence[str]
) -> Markup:
    """Draw the values of an upright axis as thin lines, each with its label to the left."""
    marks: list[Markup] = []
    for value, label in zip(values, labels, strict=True):
        y = scale(value)
        marks.append(line(left, y, right, y, class_="zero" if value == 0 else "grid"))
        marks.append(text(left - 8, y + 4, label, class_="tick end"))
    return group(*marks)


def foot_labels(scale: Scale, values: Iterable[float], y: float, labels: Sequence[str]) -> Markup:
    """Draw the values of a level axis as short strokes with labels below."""
    marks: list[Markup] = []
    for value, label in zip(values, labels, strict=True):
        x = scale(value)
        marks.append(line(x, y, x, y + 4, class_="zero"))
        marks.append(text(x, y + 17, label, class_="tick mid"))
    return group(*marks)


def cut(name: str, length: int) -> str:
    """Shorten a name in its middle, where names of one family differ least.

    Args:
        name: What is cut.
        length: Characters that may stay, 3 or more.
    """
    if len(name) <= length:
        return name
    tail = (length - 1) // 2
    return f"{name[: length - 1 - tail]}…{name[len(name) - tail :]}"
