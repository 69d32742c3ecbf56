"""The words and sentences that the demo model's vocabulary is made of, read from text files.

Knows nothing of tokens; the files lie beside this module.
"""

from __future__ import annotations

from importlib import resources


def words() -> tuple[str, ...]:
    """Return the lexicon: plain lower-case words, sorted, each once."""
    return tuple(sorted({word for line in _lines("words.txt") for word in line.split()}))


def sentences() -> tuple[str, ...]:
    """Return the sentences that give the tokenizer its capitals, digits and punctuation."""
    return tuple(_lines("sentences.txt"))


def _lines(name: str) -> list[str]:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    # Only the first line is a comment: later ones may begin with `#` as text.
    return [line for line in text.splitlines()[1:] if line]
