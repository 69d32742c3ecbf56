"""The micro-kernels as machine code: compiled once, kept on disk, linked into the process.

Kernels that Numba compiles call them by symbol. Compiling them again inside every kernel would cost
more than all the rest of it. Knows no micro-kernel's inside.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from twinpool.kernels import attention_tiles, delta_tiles, tiles
from twinpool.kernels.vector import DEFINITIONS

# Every micro-kernel must be defined before the first is compiled: all are in one file on disk.
_DEFINING = (tiles, delta_tiles, attention_tiles)

_DIGEST_BYTES = 32


def sources_digest(*modules: str) -> str:
    """A digest of source files of this package, from which compiled code is made.

    Args:
        modules: Their names, beside the micro-kernels, which always count.
    """
    digest = hashlib.sha256(llvmlite.__version__.encode())
    defining = [module.__name__.rpartition(".")[2] for module in _DEFINING]
    for name in ("library", "vector", *defining, *modules):
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return digest.hexdigest()


@functools.cache
def link() -> Any:
    """Make every micro-kernel known to the process by its symbol.

    Returns:
        The engine that owns the code; it must live as long as the process.

    Changes:
        LLVM's symbol table. Writes one file to the cache folder where it can.

    Cost:
        A few seconds the first time, then milliseconds.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, jit=True
    )
    name = hashlib.sha256(f"{sources_digest()} {cpu} {features}".encode()).hexdigest()
    path = cache_folder() / f"kernels-{name[:32]}.o"
    code = _read(path)
    if code is None:
        code = _compile(machine)
        _write(path, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    for symbol in DEFINITIONS:
        llvm.add_symbol(symbol, engine.get_function_address(symbol))
    return engine


def cache_folder() -> Path:
    """Where machine code is kept: Numba's folder where one is set, else the user's cache."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"])
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(user) / "twinpool"


def _compile(machine: Any) -> bytes:
    """All micro-kernels as one object file."""
    module = ir.Module("twinpool")
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    for definition in DEFINITIONS.values():
        function = ir.Function(module, definition.function_type, definition.name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        result = definition.emit(builder, *function.args)
        if isinstance(definition.function_type.return_type, ir.VoidType):
            builder.ret_void()
        else:
            builder.ret(result)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(parsed, passes)
    code: bytes = machine.emit_object(parsed)
    return code


def _read(path: Path) -> bytes | None:
    """The code in a file, or None where there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Put the code where the next process finds it; a folder that refuses is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        # Another process may do the same at once; each sees a whole file.
        os.replace(file.name, path)
    except OSError:
        return
