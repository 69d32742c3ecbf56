"""How kernels are compiled and how many threads they use.

Knows no kernel. Kernels share work by a counter that every thread draws its next task from, so a
thread that the machine slows down holds nobody up; which thread does a task never changes its bits.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numba
import torch

from twinpool.kernels import library

_config: Any = numba.config
_STAMP = library.sources_digest()

# Only written-out `prange` loops run in parallel, and two in a row are never fused into one: the
# end of a loop is where its threads meet, and the next loop reads, by address, what they wrote.
_PARALLEL: Any = {
    "prange": True,
    "fusion": False,
    "comprehension": False,
    "reduction": False,
    "inplace_binop": False,
    "setitem": False,
    "numpy": False,
    "stencil": False,
}


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that is called from Python; its loops over `prange` run on all threads.

    The machine code is kept on disk. Numba looks only at the file that a function stands in to
    tell whether the code on disk is stale; here any change in the package makes it stale, because
    kernels are built from intrinsics of other files.
    """
    dispatcher: Any = numba.njit(parallel=_PARALLEL, cache=True, error_model="numpy")(function)
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _STAMP
    return dispatcher


def part(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call, as a function of its own."""
    return numba.njit(error_model="numpy")(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A few lines that are compiled anew wherever they are used."""
    return numba.njit(error_model="numpy", inline="always")(function)


@functools.cache
def workers() -> int:
    """Threads that kernels use: as many as torch had at the first call.

    Every call of a kernel passes it, so the first call also links the micro-kernels.

    Changes:
        On the first call, Numba's thread count; and its threading layer, where no OpenMP library
        can be loaded.
    """
    library.link(_STAMP)
    if not _has_openmp():
        _config.THREADING_LAYER = "workqueue"
    threads = min(torch.get_num_threads(), int(_config.NUMBA_NUM_THREADS))
    numba.set_num_threads(threads)
    return threads


def threading_layer_refusal() -> str:
    """Why OpenMP threads are not used; empty when they are."""
    return "" if _has_openmp() else "numba cannot load libgomp; install libgomp1 for faster steps"


def _has_openmp() -> bool:
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:
        return False
    return True
