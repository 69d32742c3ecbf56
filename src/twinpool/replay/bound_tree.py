"""The prefix tree of a whole replay, path-compressed: which requests share which units.

Built once over everything that was served; knows no cache, no capacity and no linear program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from twinpool.replay.records import ServedRequest
from twinpool.traces.schema import BlockArray


@dataclass(slots=True, eq=False)
class Segment:
    """A run of units between two places where paths fork, begin their answer or end.

    Attributes:
        start: Depth of its first unit.
        end: Depth after its last unit.
        keys: Its units, int32, a view of one of the paths.
        children: What follows it, by first unit.
        hold_starts: Starts of the spans in which some running request is sure to hold it; rising,
            as many as `hold_ends`, disjoint.
        hold_ends: Ends of those spans.
        made_s: The latest moment at which a request seen so far may have produced it; None while
            nobody has.
        locked_s: Until when requests that reused it are known to lock it.
    """

    start: int
    end: int
    keys: BlockArray
    children: dict[int, Segment] = field(default_factory=dict)
    hold_starts: list[float] = field(default_factory=list)
    hold_ends: list[float] = field(default_factory=list)
    made_s: float | None = None
    locked_s: float = 0.0

    def add_holds(self, spans: list[tuple[float, float]]) -> None:
        """Set the spans in which it is held; they may overlap and come in any order."""
        for start, end in sorted(spans):
            if self.hold_ends and start <= self.hold_ends[-1]:
                self.hold_ends[-1] = max(self.hold_ends[-1], end)
            else:
                self.hold_starts.append(start)
                self.hold_ends.append(end)


def segment_paths(requests: Sequence[ServedRequest]) -> list[list[Segment]]:
    """Build the tree and return each request's segments, from the root down.

    Args:
        requests: What was served. Segments end wherever two paths part, and at each path's end,
            its prompt's end and its last whole unit of prompt tokens.

    Returns:
        One list per request, in the order given; requests of one namespace share segments.

    Cost:
        One comparison of arrays per request and segment on its path.
    """
    roots: dict[str, Segment] = {}
    for request in requests:
        root = roots.setdefault(request.namespace, Segment(0, 0, request.path[:0]))
        _insert(root, request.path, _cuts(request))
    return [_walk(roots[request.namespace], request.path) for request in requests]


def _cuts(request: ServedRequest) -> list[int]:
    """Return the depths at which a segment of the path has to end, rising."""
    whole_units = request.input_tokens // request.unit_tokens
    cuts = {whole_units, request.prompt_units, len(request.path)}
    return sorted(cut for cut in cuts if 0 < cut <= len(request.path))


def _insert(root: Segment, path: BlockArray, cuts: list[int]) -> None:
    node, at = root, 0
    for cut in cuts:
        while at < cut:
            key = int(path[at])
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Segment(at, cut, path[at:cut])
            else:
                shared = _num_shared(child.keys, path[at:cut])
                if shared < len(child.keys):
                    child = _split(node, child, shared)
            node, at = child, child.end


def _split(parent: Segment, child: Segment, length: int) -> Segment:
    """Cut a segment in two and return the upper part."""
    upper = Segment(child.start, child.start + length, child.keys[:length])
    child.start += length
    child.keys = child.keys[length:]
    upper.children[int(child.keys[0])] = child
    parent.children[int(upper.keys[0])] = upper
    return upper


def _num_shared(first: BlockArray, second: BlockArray) -> int:
    length = min(len(first), len(second))
    same = np.equal(first[:length], second[:length])
    return length if same.all() else int(same.argmin())


def _walk(root: Segment, path: BlockArray) -> list[Segment]:
    segments: list[Segment] = []
    node, at = root, 0
    while at < len(path):
        node = node.children[int(path[at])]
        segments.append(node)
        at = node.end
    return segments
