"""The source tree as parsed modules, and the imports that each of them makes anywhere.

Knows no rule; `source_rules` has those.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "twinpool"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Import:
    """One imported module, at one line; `target` is the full dotted name."""

    line: int
    target: str


@dataclass(frozen=True)
class Module:
    """One parsed source file."""

    name: str
    path: Path
    text: str
    is_package: bool

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def layer(self) -> str:
        """The part right below the package: `memory`, `errors`; empty for the root."""
        return self.name.split(".")[1] if "." in self.name else ""

    def at(self, node_or_line: ast.AST | int) -> str:
        line = node_or_line if isinstance(node_or_line, int) else getattr(node_or_line, "lineno", 1)
        return f"{self.path}:{line}"

    @cached_property
    def docstrings(self) -> set[int]:
        """Ids of the constants that are docstrings."""
        owners = (ast.Module, ast.ClassDef, *FUNCTIONS)
        return {
            id(node.body[0].value)
            for node in ast.walk(self.tree)
            if isinstance(node, owners)
            and node.body
            and isinstance(node.body[0], ast.Expr)
            and isinstance(node.body[0].value, ast.Constant)
        }


def load(source: Path) -> list[Module]:
    """Parse every module below `source/twinpool`, in the order of their names."""
    modules = []
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = list(path.relative_to(source).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, path, path.read_text("utf-8"), is_package))
    return modules


def imports(module: Module, known: set[str]) -> Iterator[Import]:
    """Yield every import of a module: lazy ones and those for types only too."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                is_part = origin == PACKAGE and not alias.name.startswith("_")
                yield Import(node.lineno, full if is_part or full in known else origin)
        elif isinstance(node, ast.Call) and _is_dynamic_import(node):
            yield Import(node.lineno, _dynamic_target(node))


def own_imports(module: Module, known: set[str]) -> Iterator[Import]:
    """Yield the imports that stay inside the package, the root itself left out."""
    for entry in imports(module, known):
        if entry.target.startswith(f"{PACKAGE}."):
            yield entry


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    climb = node.level - (1 if module.is_package else 0)
    stem = parts[: len(parts) - climb]
    return ".".join([*stem, node.module] if node.module else stem)


def _is_dynamic_import(node: ast.Call) -> bool:
    called = node.func
    return (isinstance(called, ast.Attribute) and called.attr == "import_module") or (
        isinstance(called, ast.Name) and called.id in ("import_module", "__import__")
    )


def _dynamic_target(node: ast.Call) -> str:
    """Return the constant beginning of what is imported, without a trailing dot."""
    first = node.args[0] if node.args else None
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]
    text = first.value if isinstance(first, ast.Constant) else ""
    return str(text).rstrip(".") or "?"
