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
_SHARED = ("threads", "linear", "rowwise")
"""Modules whose parts are compiled into the kernels of other modules."""

ENOUGH = 2**18
"""Multiply-adds that are worth more than one thread: about 10 us of one."""

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
    tell whether the code on disk is stale; here a change in any file that it is made from makes it
    stale.
    """
    try:
        dispatcher: Any = numba.njit(parallel=_PARALLEL, cache=True, error_model="numpy")(function)
    except RuntimeError:
        # No folder can be written to, neither the package's nor the user's: compile every time.
        return numba.njit(parallel=_PARALLEL, error_model="numpy")(function)
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        own = function.__module__.rpartition(".")[2]
        index._source_stamp = library.sources_digest(*_SHARED, own)
    return dispatcher


def part(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call, as a function of its own."""
    return numba.njit(error_model="numpy")(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A few lines that are compiled anew wherever they are used."""
    return numba.njit(error_model="numpy", inline="always")(function)


class _Team:
    """The threads that Numba's parallel loops use.

    Args:
        total: Threads there are.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._in_use = 0
        self.use(total)

    def use(self, count: int) -> int:
        """Let the next kernels of this Python thread use `count` of them; returns `count`."""
        if count != self._in_use:
            numba.set_num_threads(count)
            self._in_use = count
        return count


@functools.cache
def _team() -> _Team:
    """Link the micro-kernels, start the threads: as many as torch has at the first call."""
    library.link()
    # OpenMP starts a parallel region in 5 us where Numba's own workqueue takes 50.
    _config.THREADING_LAYER = "omp" if _has_openmp() else "workqueue"
    return _Team(min(torch.get_num_threads(), int(_config.NUMBA_NUM_THREADS)))


def workers(operations: int = ENOUGH) -> int:
    """Threads for one call of a kernel; every call passes it on.

    Args:
        operations: Multiply-adds that the call does, roughly. Few are done by one thread before
            another has been woken, and that one may have to wait for a processor.

    Changes:
        Numba's thread count for the calling thread; on the first call its threading layer, too.
    """
    team = _team()
    return team.use(team.total if operations >= ENOUGH else 1)


def threading_layer_refusal() -> str:
    """Why OpenMP threads are not used; empty when they are."""
    return "" if _has_openmp() else "numba cannot load libgomp; install libgomp1 for faster steps"


def _has_openmp() -> bool:
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:
        return False
    return True
