"""Speed and memory, as ratios within one run; nothing here is timed by a test."""

import twinpool.kernels  # noqa: F401  it says how OpenMP waits before torch loads it
