"""Rows of token ids in an order that a step's number decides.

Knows no model. A row of documents is any stretch of them; a row of chats begins where a chat
begins, as it does when the model is asked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tools.train_default_model.tokenizer import CHATS

IdArray = npt.NDArray[np.int64]

_SEED = 6


class Rows:
    """The rows of one kind, drawn without replacement in every round.

    Args:
        work: The folder that the ids were written to.
        kind: Such as `chat`.
        split: `train` or `valid`.
        length: Tokens of a row, and one more that the last is to predict.
    """

    def __init__(self, work: Path, kind: str, split: str, length: int) -> None:
        self._ids = np.load(work / f"{kind}.{split}.ids.npy", allow_pickle=False)
        starts = np.load(work / f"{kind}.{split}.starts.npy", allow_pickle=False)
        self._length = length
        self._name = _number_of(kind)
        self._is_chat = kind in CHATS
        last = len(self._ids) - length - 1
        if self._is_chat:
            self._starts = _packed(starts, length, last)
        else:
            # The offset within the grid changes from round to round.
            self._starts = np.arange(0, last - length, length)

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, number: int) -> IdArray:
        """Return the row of a number; after `len` rows a new round begins, in another order."""
        turn, place = divmod(number, len(self._starts))
        rng = np.random.default_rng([_SEED, self._name, turn])
        order = rng.permutation(len(self._starts))
        shift = 0 if self._is_chat else int(rng.integers(self._length))
        start = int(self._starts[order[place]]) + shift
        return self._ids[start : start + self._length + 1].astype(np.int64)


def _number_of(kind: str) -> int:
    """Return a number for a kind, the same in every process."""
    return int.from_bytes(kind.encode()[:4], "big")


def _packed(starts: npt.NDArray[np.int64], length: int, last: int) -> npt.NDArray[np.int64]:
    """Return the beginnings of rows such that every chat is whole in one of them, if it fits."""
    chosen = []
    at = 0
    while at < len(starts) and starts[at] <= last:
        chosen.append(starts[at])
        # The chat that is cut at the end of this row begins the next one.
        following = int(np.searchsorted(starts, starts[at] + length, side="right")) - 1
        at = max(following, at + 1)
    return np.array(chosen, np.int64)


class Mixture:
    """Batches in which the kinds have given shares.

    Args:
        sources: Rows of every kind.
    """

    def __init__(self, sources: dict[str, Rows]) -> None:
        self._sources = sources

    def draw(
        self, step: int, count: int, shares: dict[str, float], taken: dict[str, int]
    ) -> tuple[list[str], IdArray]:
        """Return the kinds and the rows of a step.

        Args:
            step: Its number, which seeds the draw.
            count: How many rows.
            shares: Probability of each kind.
            taken: How many rows of each kind were used so far.

        Changes:
            `taken`.
        """
        rng = np.random.default_rng([_SEED, step])
        kinds = list(self._sources)
        drawn = rng.choice(kinds, size=count, p=[shares[kind] for kind in kinds]).tolist()
        rows = []
        for kind in drawn:
            rows.append(self._sources[kind].row(taken[kind]))
            taken[kind] += 1
        return drawn, np.stack(rows)
