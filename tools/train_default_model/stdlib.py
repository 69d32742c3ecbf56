"""The sources that are at hand: CPython's standard library, its documentation, docstrings.

Reads files; knows no tokens and no chats. Which files are held out for validation is decided here,
by name, so that the documents and the dialogues made of them agree on it.
"""

from __future__ import annotations

import ast
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

from tools.train_default_model.rst import Described

# Tests repeat themselves, tables are no text, and bundled wheels have other licences.
_LEFT_OUT_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "ensurepip",
     "__pycache__", "pydoc_data", "lib2to3", "_distutils"}
)  # fmt: skip
_MAX_FILE_BYTES = 200_000


def is_held_out(name: str, *, one_in: int = 25) -> bool:
    """Return whether a file or a session belongs to the validation set.

    Args:
        name: Its name, relative to the source; the same name gives the same answer everywhere.
        one_in: How many names there are for one that is held out, about.
    """
    return zlib.crc32(name.encode()) % one_in == 7


def source_files(root: Path) -> Iterator[tuple[str, str]]:
    """Yield `(name, text)` of the modules of a standard library.

    Args:
        root: Such as `sysconfig.get_path("stdlib")`.
    """
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _LEFT_OUT_FOLDERS.intersection(parts) or path.stat().st_size > _MAX_FILE_BYTES:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if len(text) > 200:
            yield "/".join(parts), text


def documentation_files(root: Path) -> Iterator[tuple[str, str]]:
    """Yield `(name, reST)` of the documentation.

    Args:
        root: The folder `_sources` of a built documentation, or `Doc` of CPython.
    """
    paths = [*root.rglob("*.rst.txt"), *root.rglob("*.rst")]
    for path in sorted(paths):
        name = path.relative_to(root).as_posix().removesuffix(".txt")
        text = path.read_text(encoding="utf-8")
        if len(text) > 200 and not name.endswith("changelog.rst"):
            yield name, text


def docstrings(name: str, text: str) -> Iterator[Described]:
    """Yield what a module says of its public functions and classes, and of itself.

    Args:
        name: The module's file name.
        text: Its source.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sources with old escapes
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if any(part.startswith("_") for part in module.split(".")):
        return
    yield from _of_node("module", "", module, None, tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from _of_node("function", module, node.name, node, node)
        elif isinstance(node, ast.ClassDef):
            yield from _of_node("class", module, node.name, None, node)
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield from _of_node("method", node.name, inner.name, inner, inner)


def _of_node(
    kind: str,
    owner: str,
    name: str,
    function: ast.FunctionDef | None,
    node: ast.Module | ast.ClassDef | ast.FunctionDef,
) -> Iterator[Described]:
    paragraphs = []
    for block in (ast.get_docstring(node) or "").split("\n\n")[:3]:
        line = " ".join(block.split()).replace("``", "`")
        if not 25 <= len(line) <= 600 or not line[0].isupper() or not line.endswith("."):
            break
        paragraphs.append(line)
    if paragraphs and not name.startswith("_"):
        yield Described(
            kind=kind,
            owner=owner,
            name=name,
            arguments=None if function is None else ast.unparse(function.args),
            paragraphs=tuple(paragraphs),
        )
