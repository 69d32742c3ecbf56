"""Place kinds: why a checkpoint was left where it stands.

Kinds behave alike: a prompt's end is what the next turn wants, a finish is wanted only where a
client sends the answer back as it was. Knows no tree and no request.
"""

from __future__ import annotations

import enum


class PlaceKind(enum.IntEnum):
    """Why a unit is there."""

    KV = 0
    PROMPT_END = 1
    BOUNDARY = 2
    FINISH = 3
    FORK = 4
    PERIODIC = 5
