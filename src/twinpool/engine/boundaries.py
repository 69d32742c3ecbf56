r"""Where a chat prompt's stable parts end, as token depths, and the prompt's tokens themselves.

Knows no template: it is given the prompt and texts that other prompts would begin like. Special
tokens cut a text for the tokenizer, so only what follows the last one that the texts share has to
be tokenised again; a prompt of any length costs one pass and a few short tails.

    prompt    <|im_start|>system\n...<|im_end|>\n<|im_start|>user\nHow are...
    variant   <|im_start|>system\n...<|im_end|>\n<|im_start|>user\nQuite so...
                                                 ^anchor           ^texts part
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from twinpool.engine.tokenizer import Tokenizer


class BoundaryFinder:
    """Tokenises prompts and finds the depths that they share with their variants.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        cuts = _clean_cuts(tokenizer.added_tokens.values())
        self._cut = re.compile("|".join(re.escape(text) for text in cuts)) if cuts else None

    def tokenize(
        self, prompt: str, variants: Sequence[Sequence[str]]
    ) -> tuple[list[int], tuple[int, ...]]:
        """Return a prompt's tokens and the depths that it shares with groups of variants.

        Args:
            prompt: The rendered prompt.
            variants: Groups of texts. A group's depth is the longest token prefix that the prompt
                shares with every text of the group.

        Returns:
            The token ids, and the depths, rising, each once, in `[1, len(ids) - 1]`.
        """
        anchors = [
            self._last_anchor(prompt, min(_common_length(prompt, text) for text in group))
            for group in variants
        ]
        pieces = _cut(prompt, anchors)
        ids: list[int] = []
        depth_at = {}
        for start, piece in pieces:
            depth_at[start] = len(ids)
            ids += self._encode(piece)
        depths = {
            min(self._shared(ids, depth_at[anchor], text[anchor:]) for text in group)
            for anchor, group in zip(anchors, variants, strict=True)
        }
        return ids, tuple(sorted({min(depth, len(ids) - 1) for depth in depths} - {0, -1}))

    def _last_anchor(self, prompt: str, end: int) -> int:
        """Return where the last special token that ends by `end` begins; 0 when there is none."""
        if self._cut is None:
            return 0
        # Backwards in growing steps: the last one is near the end, and the text may be long.
        step = 256
        low = end
        while low > 0:
            low = max(0, low - step)
            step *= 4
            starts = [match.start() for match in self._cut.finditer(prompt, low, end)]
            if starts:
                return starts[-1]
        return 0

    def _shared(self, ids: list[int], depth: int, tail: str) -> int:
        """Return the shared depth, given that it is `depth` at least and a variant's tail."""
        other = self._encode(tail)
        length = 0
        for mine, theirs in zip(ids[depth : depth + len(other)], other, strict=False):
            if mine != theirs:
                break
            length += 1
        return depth + length

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _cut(text: str, places: Iterable[int]) -> list[tuple[int, str]]:
    starts = sorted({0, *places})
    ends = [*starts[1:], len(text)]
    return [(start, text[start:end]) for start, end in zip(starts, ends, strict=True)]


def _common_length(one: str, other: str) -> int:
    """Return the length of the longest common prefix of two texts."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _clean_cuts(added: Iterable[Any]) -> list[str]:
    """Return the added tokens that cut a text wherever they stand, whatever stands around them.

    Such a token is found in the text as it is, takes in no white space, and neither overlaps with
    an added token nor stands inside one. A token that must be a whole word looks at its neighbours:
    beside such tokens only texts without a letter or digit at their ends are clean.
    """
    tokens = list(added)
    texts = [token.content for token in tokens if token.content]
    joined = "\0".join(texts)
    prefixes = {text[:size] for text in texts for size in range(1, len(text))}
    suffixes = {text[-size:] for text in texts for size in range(1, len(text))}
    looks_around = any(token.single_word for token in tokens)
    found = []
    for token in tokens:
        text = token.content
        if not text or not token.special or token.normalized:
            continue
        takes_in = token.lstrip or token.rstrip or token.single_word
        overlaps = joined.count(text) > 1 or any(
            text[:size] in suffixes or text[-size:] in prefixes for size in range(1, len(text))
        )
        is_word = looks_around and (text[0].isalnum() or text[-1].isalnum())
        if not (takes_in or overlaps or is_word):
            found.append(text)
    return found
