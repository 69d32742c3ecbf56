"""Builds the corpus: documents and chats, for training and for validation, as JSON lines.

Run it first. Knows no tokens; what it writes depends on its inputs alone.

    python -m tools.train_default_model.corpus WORK --docs FOLDER --traces FOLDER
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tools.train_default_model import dialogues, lmcache, stdlib
from tools.train_default_model.rst import (
    Described,
    described,
    glossary_terms,
    plain_text,
    questions,
)

SPLITS = ("train", "valid")
KINDS = ("code", "docs", "chat")
# Chats about what people ask first, again and again in other words: for training only.
CORE = "core"

_SEED = 6
# The wording and the grouping of the questions differ from round to round.
_ROUNDS = {"train": 4, "valid": 1}
_TRACE_ROUNDS = {"train": 3, "valid": 1}
# There are few sessions: more of them are held out, so that there is something to measure.
_SESSIONS_ONE_IN = 10
_CORE_ROUNDS = 10
_CORE_REPEATS = 6000
_CORE_MODULES = """
    base64 bisect collections copy exceptions functions functools glob heapq itertools json math
    os.path random re shutil statistics string textwrap time
"""
_CORE_DOCUMENTS = frozenset(f"library/{name}.rst" for name in _CORE_MODULES.split())
_CORE_KINDS = frozenset(("module", "function", "class", "exception", "term", "question"))
_REPEATS = {"train": 6000, "valid": 100}

Texts = dict[tuple[str, str], list[object]]


def main() -> None:
    """Write `KIND.SPLIT.jsonl`: a text per line for documents, a list of messages for chats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder to write to")
    parser.add_argument(
        "--docs", type=Path, required=True, help="reST sources of the documentation"
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder with the trace archives")
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    options = parser.parse_args()
    rows: Texts = defaultdict(list)
    groups: dict[str, list[list[Described]]] = {split: [] for split in (*SPLITS, CORE)}
    _add_code(options.stdlib, rows, groups)
    _add_docs(options.docs, rows, groups)
    words = _identifiers(rows["code", "train"])
    for split in SPLITS:
        rng = random.Random(f"{_SEED} {split}")
        chats = rows["chat", split]
        for _ in range(_ROUNDS[split]):
            chats.extend(
                dialogues.describing_chats(groups[split], rng, small_talk=0.08, brief=False)
            )
        chats.extend(dialogues.repeating_chats(words, _REPEATS[split], rng))
        for _ in range(_TRACE_ROUNDS[split]):
            chats.extend(_recorded(options.traces, split))
        rng.shuffle(chats)
    rows[CORE, "train"] = list(_core_chats(groups[CORE], words, options.traces))
    options.work.mkdir(parents=True, exist_ok=True)
    for (kind, split), texts in sorted(rows.items()):
        _write(options.work / f"{kind}.{split}.jsonl", texts)
        size = sum(len(json.dumps(text, ensure_ascii=False).encode()) for text in texts)
        print(f"{kind}.{split}: {len(texts):,} texts, {size:,} bytes")


def _add_code(root: Path, rows: Texts, groups: dict[str, list[list[Described]]]) -> None:
    for name, text in stdlib.source_files(root):
        split = "valid" if stdlib.is_held_out(name) else "train"
        rows["code", split].append(text)
        groups[split].append(list(stdlib.docstrings(name, text)))


def _add_docs(root: Path, rows: Texts, groups: dict[str, list[list[Described]]]) -> None:
    for name, text in stdlib.documentation_files(root):
        split = "valid" if stdlib.is_held_out(name) else "train"
        rows["docs", split].append(plain_text(text))
        if name == "glossary.rst":
            found = list(glossary_terms(text))
        else:
            found = [*described(text), *questions(text)]
        groups[split].append(found)
        if split == "train":
            # Of the other documents, what their modules are for.
            is_core = name in _CORE_DOCUMENTS or name == "glossary.rst" or name.startswith("faq/")
            groups[CORE].append(
                [item for item in found if item.kind in (_CORE_KINDS if is_core else {"module"})]
            )


def _core_chats(
    groups: list[list[Described]], words: list[str], traces: Path
) -> list[dialogues.Chat]:
    rng = random.Random(f"{_SEED} {CORE}")
    modules = [item for group in groups for item in group if item.kind == "module"]
    others = [[item for item in group if item.kind != "module"] for group in groups]
    chats: list[dialogues.Chat] = []
    for _ in range(_CORE_ROUNDS):
        chats.extend(
            dialogues.describing_chats([modules, *others], rng, small_talk=0.2, brief=True)
        )
        chats.extend(_recorded(traces, "train", archives=("taubench.tar.xz",)))
    chats.extend(dialogues.repeating_chats(words, _CORE_REPEATS, rng))
    rng.shuffle(chats)
    return chats


def _recorded(
    folder: Path, split: str, archives: tuple[str, ...] = ("taubench.tar.xz", "miniswe.tar.xz")
) -> Iterable[lmcache.Chat]:
    for archive in archives:
        for name, requests in lmcache.sessions(folder / archive):
            held_out = stdlib.is_held_out(name, one_in=_SESSIONS_ONE_IN)
            if held_out == (split == "valid"):
                yield from lmcache.chats(requests, is_service=archive.startswith("tau"))


def _identifiers(texts: Iterable[object]) -> list[str]:
    found = {word for text in texts for word in re.findall(r"\b[A-Za-z_]\w{3,20}\b", str(text))}
    return sorted(found)


def _write(path: Path, texts: Iterable[object]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps(text, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
