"""Makes the shared test modules in this folder importable, and shares the cores between workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# How OpenMP waits has to be set before torch is imported, as the engine process does.
import twinpool.kernels  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))

# Test workers run side by side: threads of one that wait at a barrier for a core that another has
# cost more than they bring. Servers that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
