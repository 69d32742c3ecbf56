"""Run every benchmark, or the named ones: `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    "prefix_cache",
    "kernels",
    "generate",
    "chat",
    "replay",
    "elastic",
    "live_lanes",
    "bound",
    "peers",
)


def main() -> int:
    """Run them one after the other; each prints its own table."""
    wanted = sys.argv[1:] or list(NAMES)
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        print(
            f"error: no benchmark {unknown[0]!r}\nhint: one of {', '.join(NAMES)}", file=sys.stderr
        )
        return 2
    for name in wanted:
        print(f"== {name}", flush=True)
        importlib.import_module(f"benchmarks.{name}").main([])
    return 0


if __name__ == "__main__":
    sys.exit(main())
