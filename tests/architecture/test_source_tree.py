"""The source tree keeps the rules of its design: layers, sizes, names, docstrings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import source_rules as rules
from source_tree import Module, load

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
MODULES = load(SOURCE)

# What the HTTP front needs of the engine; the engine process alone loads torch.
FRONT = ("protocol", "channel", "client", "tokenizer", "detokenizer", "chat", "stopping")
EXTRAS = sorted(set(rules.FOREIGN) - {"click", "prometheus_client"})


def _report(problems: list[str]) -> None:
    short = [problem.replace(f"{ROOT}{os.sep}", "") for problem in problems]
    assert not short, "\n" + "\n".join(short)


@pytest.mark.parametrize(
    "rule",
    [
        rules.misplaced,
        rules.upward_imports,
        rules.import_cycles,
        rules.foreign_imports,
        rules.impure_core,
        rules.heavy_package_roots,
        rules.dynamic_imports,
        rules.oversized,
        rules.undocumented,
        rules.banned_words,
        rules.vague_names,
    ],
    ids=lambda rule: rule.__name__,
)
def test_source_tree_has_none(rule: Callable[[list[Module]], list[str]]) -> None:
    assert len(MODULES) > 20
    _report(rule(MODULES))


def test_no_file_names_a_path_of_one_machine() -> None:
    files = _repository_files()
    assert ROOT / "pyproject.toml" in files
    _report(rules.machine_paths(files))


def test_front_never_reaches_torch() -> None:
    """Read from the source, so that lazy imports count."""
    start = [module.name for module in MODULES if module.layer in ("server", "replay")]
    _report(rules.tensors_behind(MODULES, start + _front_modules()))


def test_planning_side_imports_without_any_extra() -> None:
    layers = ("", "errors", "clock", "units", "settings", "traces", *sorted(rules.CORE))
    names = [module.name for module in MODULES if module.layer in layers]
    names += [module.name for module in MODULES if module.layer == "cli"]
    _import_blocked(names, EXTRAS)


def test_front_imports_without_torch() -> None:
    names = [module.name for module in MODULES if module.layer in ("server", "telemetry", "replay")]
    _import_blocked(names + _front_modules(), ["torch", "numba", "llvmlite", "safetensors"])


def _front_modules() -> list[str]:
    missing = [name for name in FRONT if not (SOURCE / "twinpool/engine" / f"{name}.py").exists()]
    assert not missing, f"engine modules that the front imports are gone: {missing}"
    return [f"twinpool.engine.{name}" for name in FRONT]


def _import_blocked(names: list[str], blocked: list[str]) -> None:
    """Import modules in a fresh process in which some third-party packages cannot be imported."""
    code = (
        "import sys, importlib\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        f"for name in {names!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError as error:\n"
        "        sys.exit(f'{name}: {error}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr


def _repository_files() -> list[Path]:
    skipped = {"__pycache__", "build", "dist", "node_modules", "results"}
    files = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in skipped and (not name.startswith(".") or name in (".ci", ".github"))
        ]
        files += [Path(folder) / name for name in names]
    return [path for path in files if path.stat().st_size < 2_000_000]
