"""Every rule finds the fault that it is for, in a small tree that has exactly that fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import source_rules as rules
from source_tree import Module, load

DOC = '"""Says what it is."""\n'


def _tree(folder: Path, files: dict[str, str]) -> list[Module]:
    for name, text in files.items():
        path = folder / "twinpool" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(DOC + text)
    return load(folder)


FAULTS = [
    (rules.upward_imports, "memory/tree.py", "import twinpool.scheduling.queue", "stands above"),
    (rules.upward_imports, "memory/tree.py", "from twinpool import engine", "stands above"),
    (rules.upward_imports, "memory/tree.py", "from ..cli import main", "stands above"),
    (
        rules.upward_imports,
        "memory/tree.py",
        "def late():\n    from twinpool.server import app",
        "stands above",
    ),
    (
        rules.upward_imports,
        "memory/tree.py",
        'import importlib\nX = importlib.import_module("twinpool.engine.worker")',
        "stands above",
    ),
    (rules.upward_imports, "server/app.py", "import twinpool.replay.run", "siblings"),
    (rules.upward_imports, "traces/reader.py", "import twinpool.telemetry.table", "siblings"),
    (rules.upward_imports, "memory/tree.py", "import twinpool.drawer", "no place"),
    (rules.upward_imports, "__init__.py", "import twinpool.memory", "root imports nothing"),
    (rules.misplaced, "drawer/thing.py", "", "no place"),
    (rules.foreign_imports, "memory/tree.py", "import torch.nn", "imports torch"),
    (rules.foreign_imports, "server/app.py", "def f():\n    import numba", "imports numba"),
    (rules.foreign_imports, "engine/worker.py", "import transformers", "no package"),
    (rules.impure_core, "memory/tree.py", "import time", "imports time"),
    (rules.impure_core, "scheduling/queue.py", "from random import choice", "imports random"),
    (rules.impure_core, "tiers/store.py", "import socket", "imports socket"),
    (rules.impure_core, "memory/tree.py", "from twinpool.clock import Clock", "twinpool.clock"),
    (rules.impure_core, "memory/tree.py", "KEY = id(object())", "id() differs"),
    (rules.heavy_package_roots, "engine/__init__.py", "import json", "stays light"),
    (rules.dynamic_imports, "engine/worker.py", "X = __import__(NAME)", "computed name"),
    (rules.oversized, "memory/tree.py", "X = 1\n" * 500, "501 lines, 500 at most"),
    (rules.oversized, "kernels/scan.py", "X = 1\n" * 700, "701 lines, 700 at most"),
    (rules.oversized, "memory/tree.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
    (rules.undocumented, "memory/tree.py", "def public():\n    return 1", "public has no"),
    (rules.undocumented, "memory/tree.py", "class Tree:\n    x = 1", "Tree has no"),
    (
        rules.undocumented,
        "memory/tree.py",
        'class Tree:\n    """Is one."""\n    async def walk(self):\n        return 1',
        "Tree.walk has no",
    ),
    (rules.banned_words, "memory/tree.py", "import pickle", "imports pickle"),
    (rules.banned_words, "memory/tree.py", "X = eval('1')", "eval()"),
    (rules.banned_words, "models/loader.py", "X = torch.load(PATH)", "torch.load"),
    (rules.banned_words, "models/loader.py", "X = np.load(P, allow_pickle=True)", "allow_pickle"),
    (rules.banned_words, "memory/tree.py", "X = np.random.rand()", "np.random"),
    (rules.banned_words, "models/loader.py", "X = 'https://example.com/w'", "URL https://example"),
    (rules.vague_names, "memory/utils.py", "", "drawer"),
    (rules.vague_names, "memory/tree.py", "class TreeManager:\n    '''Is one.'''", "TreeManager"),
]


@pytest.mark.parametrize(("rule", "name", "text", "says"), FAULTS)
def test_rule_finds_its_fault(rule, name: str, text: str, says: str, tmp_path: Path) -> None:
    problems = rule(_tree(tmp_path, {name: text}))
    assert len(problems) == 1
    assert says in problems[0]
    assert name in problems[0]


def test_a_missing_module_docstring_is_found(tmp_path: Path) -> None:
    (tmp_path / "twinpool").mkdir()
    (tmp_path / "twinpool" / "errors.py").write_text("X = 1\n")
    assert "module twinpool.errors has no docstring" in rules.undocumented(load(tmp_path))[0]


def test_an_import_cycle_is_named_in_full(tmp_path: Path) -> None:
    modules = _tree(
        tmp_path,
        {
            "memory/a.py": "import twinpool.memory.b",
            "memory/b.py": "def late():\n    from twinpool.memory import c",
            "memory/c.py": "from twinpool.memory.a import X",
        },
    )
    (problem,) = rules.import_cycles(modules)
    assert "twinpool.memory.a -> twinpool.memory.b -> twinpool.memory.c -> " in problem


def test_torch_behind_the_front_is_found_with_the_way_to_it(tmp_path: Path) -> None:
    modules = _tree(
        tmp_path,
        {
            "server/app.py": "def f():\n    from twinpool.engine import client",
            "engine/client.py": "import twinpool.engine.worker",
            "engine/worker.py": "import torch",
            "engine/executor.py": "import numba",
        },
    )
    (problem,) = rules.tensors_behind(modules, ["twinpool.server.app"])
    assert "server.app -> twinpool.engine.client -> twinpool.engine.worker imports torch" in problem
    assert rules.tensors_behind(modules, ["twinpool.server.app", "twinpool.engine.executor"])[1:]


def test_a_heavy_package_root_is_behind_all_its_modules(tmp_path: Path) -> None:
    modules = _tree(tmp_path, {"engine/__init__.py": "import torch", "engine/client.py": ""})
    assert len(rules.tensors_behind(modules, ["twinpool.engine.client"])) == 1


def test_a_path_of_one_machine_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for place in ("/".join(["", "work", "main"]), "/".join(["", "home", "ann", "x"])):
        page.write_text(f"run it\nin {place} then\n")
        (problem,) = rules.machine_paths([page])
        assert f"{page}:2:" in problem


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scheduling/queue.py", "from twinpool.memory.tree import Node"),
        ("scheduling/queue.py", "from . import plan"),
        ("units.py", "from twinpool.errors import ConfigError"),
        ("cli/serve.py", "def run():\n    import twinpool.server.app"),
        ("engine/worker.py", "import torch, numba, time, random"),
        ("kernels/scan.py", "X = 1\n" * 690),
        ("memory/tree.py", "def f():\n" + "    x = 1\n" * 59),
        ("models/block.py", "def _f(model):\n    return model.eval()"),
        ("models/loader.py", "X = np.load(P, allow_pickle=False)"),
        ("server/app.py", "X = f'http://{HOST}:{PORT}', 'http://127.0.0.1:8000'"),
        ("memory/tree.py", "def _f():\n    '''Source: https://example.com/page.'''"),
    ],
)
def test_what_is_allowed_is_not_reported(name: str, text: str, tmp_path: Path) -> None:
    modules = _tree(tmp_path, {name: text})
    for rule in (
        rules.misplaced,
        rules.upward_imports,
        rules.import_cycles,
        rules.foreign_imports,
        rules.impure_core,
        rules.heavy_package_roots,
        rules.dynamic_imports,
        rules.oversized,
        rules.banned_words,
        rules.vague_names,
    ):
        assert rule(modules) == []


def test_a_long_docstring_does_not_make_a_function_too_long(tmp_path: Path) -> None:
    text = 'def f():\n    """Says it.\n' + "    line\n" * 80 + '    """\n    return 1\n'
    assert rules.oversized(_tree(tmp_path, {"memory/tree.py": text})) == []
