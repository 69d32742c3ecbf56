"""The rules of the source tree; each returns its violations as `file:line: what is wrong`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import FUNCTIONS, PACKAGE, Module, imports, own_imports

# From the bottom up. A module imports from lower rows and from its own package; the names of one
# row are independent of each other.
LAYERS = (
    ("errors",),
    ("clock", "units"),
    ("spec",),
    ("memory",),
    ("tiers",),
    ("scheduling",),
    ("settings",),
    ("telemetry", "traces"),
    ("kernels",),
    ("models",),
    ("engine",),
    ("server", "replay"),
    ("cli",),
)
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}

# The core decides and never does: no tensor, no time, no chance, no wire.
CORE = {"spec", "memory", "tiers", "scheduling"}
BANNED_IN_CORE = {
    "asyncio",
    "datetime",
    "multiprocessing",
    "random",
    "secrets",
    "select",
    "selectors",
    "socket",
    "threading",
    "time",
    "uuid",
    f"{PACKAGE}.clock",
}
# Who may import what: everything here is an extra that the core install lacks.
TENSOR_PACKAGES = {"kernels", "models", "engine"}
FOREIGN = {
    "torch": TENSOR_PACKAGES,
    "numba": TENSOR_PACKAGES,
    "llvmlite": TENSOR_PACKAGES,
    "safetensors": TENSOR_PACKAGES,
    "tokenizers": {"engine", "traces"},
    "jinja2": {"engine"},
    "psutil": {"engine"},
    "starlette": {"server"},
    "pydantic": {"server"},
    "uvicorn": {"server", "cli"},
    "prometheus_client": {"telemetry", "server"},
    "click": {"cli"},
    "transformers": set(),
    "requests": set(),
    "httpx": set(),
    "huggingface_hub": set(),
}
BANNED_MODULES = {"pickle", "dill", "marshal", "shelve", "cloudpickle", "joblib"}
BANNED_CALLS = {"eval", "exec"}
BANNED_ATTRIBUTES = {"torch.load", "torch.hub", "numpy.random", "np.random"}

MAX_FILE_LINES = 500
MAX_KERNEL_FILE_LINES = 700
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 120

DRAWER_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "misc", "manager", "tools"}
VAGUE_SUFFIXES = ("Manager", "Handler", "Helper", "Info", "Data", "Utils")
URL = re.compile(r"https?://(?!127\.|localhost|\[)[\w-]+(\.[\w-]+)*\.[a-z]{2,}", re.IGNORECASE)


def upward_imports(modules: list[Module]) -> list[str]:
    """Imports that point up, or sideways between siblings."""
    known = {module.name for module in modules}
    return [
        f"{module.at(entry.line)}: {module.name} imports {entry.target}, {reason}"
        for module in modules
        for entry in own_imports(module, known)
        if (reason := _why_not(module.layer, entry.target.split(".")[1]))
    ]


def _why_not(source: str, target: str) -> str:
    if source == target:
        return ""
    if target not in LEVEL:
        return f"and {target} has no place in the import order"
    if not source:
        return "and the package root imports nothing"
    if source not in LEVEL:
        return f"and {source} has no place in the import order"
    if LEVEL[target] > LEVEL[source]:
        return f"and {target} stands above {source}"
    if LEVEL[target] == LEVEL[source]:
        return f"and {target} and {source} are siblings"
    return ""


def misplaced(modules: list[Module]) -> list[str]:
    """Modules and packages that the import order does not name."""
    return [
        f"{module.at(1)}: {module.name} has no place in the import order"
        for module in modules
        if module.layer and module.layer not in LEVEL
    ]


def import_cycles(modules: list[Module]) -> list[str]:
    """Cycles of modules, lazy imports included; one line per cycle."""
    known = {module.name for module in modules}
    edges = {
        module.name: sorted({e.target for e in own_imports(module, known)} & known)
        for module in modules
    }
    found: dict[frozenset[str], str] = {}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycle = path[path.index(name) :]
            found.setdefault(frozenset(cycle), " -> ".join([*cycle, name]))
            return
        if name in done:
            return
        for target in edges[name]:
            visit(target, [*path, name])
        done.add(name)

    for name in edges:
        visit(name, [])
    return [f"import cycle: {text}" for text in found.values()]


def foreign_imports(modules: list[Module]) -> list[str]:
    """Third-party imports outside the packages that they are meant for."""
    known = {module.name for module in modules}
    problems = []
    for module in modules:
        for entry in imports(module, known):
            top = entry.target.partition(".")[0]
            if top in FOREIGN and module.layer not in FOREIGN[top]:
                allowed = ", ".join(sorted(FOREIGN[top])) or "no package"
                problems.append(
                    f"{module.at(entry.line)}: {module.name} imports {top}, which belongs in "
                    f"{allowed}"
                )
    return problems


def tensors_behind(modules: list[Module], start: list[str]) -> list[str]:
    """Imports of torch and its kin in whatever some modules import, directly or not."""
    by_name = {module.name: module for module in modules}
    known = set(by_name)
    tensor_modules = {name for name, owners in FOREIGN.items() if owners is TENSOR_PACKAGES}
    reached: dict[str, str] = {}
    waiting = [(name, "") for name in start]
    while waiting:
        name, path = waiting.pop()
        if name in reached or name not in known:
            continue
        reached[name] = f"{path} -> {name}" if path else name
        # Importing a module runs the roots of the packages around it too.
        roots = [name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)]
        targets = [entry.target for entry in own_imports(by_name[name], known)]
        waiting += [(target, reached[name]) for target in (*targets, *roots)]
    return [
        f"{by_name[name].at(entry.line)}: {path} imports {entry.target}"
        for name, path in sorted(reached.items())
        for entry in imports(by_name[name], known)
        if entry.target.partition(".")[0] in tensor_modules
    ]


def impure_core(modules: list[Module]) -> list[str]:
    """Clocks, sockets, threads and chance in the packages that only decide."""
    known = {module.name for module in modules}
    problems = []
    for module in modules:
        if module.layer not in CORE:
            continue
        for entry in imports(module, known):
            if entry.target in BANNED_IN_CORE or entry.target.partition(".")[0] in BANNED_IN_CORE:
                problems.append(
                    f"{module.at(entry.line)}: {module.name} imports {entry.target}; the core "
                    "gets time and chance as arguments"
                )
        problems += [
            f"{module.at(node)}: {node.func.id}() differs from run to run; use a counter"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("id", "hash")
        ]
    return problems


def heavy_package_roots(modules: list[Module]) -> list[str]:
    """Package roots that import: whoever needs one module would load them all."""
    known = {module.name for module in modules}
    return [
        f"{module.at(entry.line)}: {module.name} imports {entry.target}; a package root stays light"
        for module in modules
        if module.is_package and module.name.count(".") <= 1
        for entry in imports(module, known)
        # `os` is loaded with the interpreter: setting a variable of the environment costs nothing.
        if entry.target not in ("__future__", "os")
    ]


def dynamic_imports(modules: list[Module]) -> list[str]:
    """Imports by a computed name, outside the command line that loads its verbs so."""
    known = {module.name for module in modules}
    return [
        f"{module.at(entry.line)}: imports a module by a computed name"
        for module in modules
        if module.layer != "cli"
        for entry in imports(module, known)
        if entry.target == "?"
    ]


def oversized(modules: list[Module]) -> list[str]:
    """Files and functions that are too long; a function's docstring does not count."""
    problems = []
    for module in modules:
        lines = len(module.text.splitlines())
        limit = MAX_KERNEL_FILE_LINES if module.layer == "kernels" else MAX_FILE_LINES
        if lines > limit:
            problems.append(f"{module.at(1)}: {lines} lines, {limit} at most")
        for node in ast.walk(module.tree):
            if not isinstance(node, FUNCTIONS):
                continue
            length = _code_lines(node)
            # A loop over `prange` cannot be moved out of the function that is compiled.
            limit = MAX_KERNEL_LINES if _is_parallel_kernel(node) else MAX_FUNCTION_LINES
            if length > limit:
                problems.append(
                    f"{module.at(node)}: {node.name} has {length} lines, {limit} at most"
                )
    return problems


def _is_parallel_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "threads.kernel" for decorator in node.decorator_list)


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return length


def undocumented(modules: list[Module]) -> list[str]:
    """Modules and public names without a docstring."""
    problems = []
    for module in modules:
        if not ast.get_docstring(module.tree):
            problems.append(f"{module.at(1)}: module {module.name} has no docstring")
        problems += [
            f"{module.at(node)}: {name} has no docstring"
            for name, node in _public_names(module.tree.body, "")
            if not ast.get_docstring(node)
        ]
    return problems


def _public_names(
    body: list[ast.stmt], prefix: str
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if not isinstance(node, (ast.ClassDef, *FUNCTIONS)) or node.name.startswith("_"):
            continue
        if any(
            isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list
        ):
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from _public_names(node.body, f"{node.name}.")


def banned_words(modules: list[Module]) -> list[str]:
    """Ways to run what was read: pickles, eval, torch.load; URLs; unseeded random numbers."""
    known = {module.name for module in modules}
    problems = []
    for module in modules:
        problems += [
            f"{module.at(entry.line)}: imports {entry.target}"
            for entry in imports(module, known)
            if entry.target.partition(".")[0] in BANNED_MODULES
        ]
        problems += [
            f"{module.at(node)}: {word}"
            for node in ast.walk(module.tree)
            if (word := _banned_word(module, node))
        ]
    return problems


def _banned_word(module: Module, node: ast.AST) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return f"{node.func.id}()" if node.func.id in BANNED_CALLS else ""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        name = f"{node.value.id}.{node.attr}"
        is_generator = name.endswith(".random") and module.layer not in CORE
        return name if name in BANNED_ATTRIBUTES and not is_generator else ""
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        is_off = isinstance(node.value, ast.Constant) and node.value.value is False
        return "" if is_off else "allow_pickle"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        match = None if id(node) in module.docstrings else URL.search(node.value)
        return f"URL {match.group()}" if match else ""
    return ""


def vague_names(modules: list[Module]) -> list[str]:
    """Drawers: module names and class suffixes that say nothing."""
    problems = [
        f"{module.at(1)}: {module.name} is a drawer; name it by what it holds"
        for module in modules
        if module.name.rsplit(".", 1)[-1].strip("_") in DRAWER_NAMES
    ]
    problems += [
        f"{module.at(node)}: class {node.name} ends in a word that says nothing"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith(VAGUE_SUFFIXES)
    ]
    return problems


def machine_paths(files: list[Path]) -> list[str]:
    """Paths of one particular machine in any file of the repository."""
    roots = ("work", "root", r"home/\w+", r"Users/\w+", "tmp/brief")
    pattern = re.compile(rf"(?<![\w.$}}/-])/(?:{'|'.join(roots)})(?![\w-])|\.{'library'}/")
    problems = []
    for path in files:
        try:
            text = path.read_text("utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        problems += [
            f"{path}:{number}: names a path of one machine: {match.group()}"
            for number, line in enumerate(text.splitlines(), 1)
            if (match := pattern.search(line))
        ]
    return problems
