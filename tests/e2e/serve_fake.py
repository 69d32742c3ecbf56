"""Runs the real front over the fake engine: `serve_fake.py '{"flags": {...}, "engine": {...}}'`.

Prints errors and exits as the command line does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import fake_engine
from fake_text import text_tools
from twinpool.cli.output import exit_code_of, print_error
from twinpool.errors import TwinpoolError
from twinpool.server.console import Console
from twinpool.server.run import serve
from twinpool.settings.resolve import resolve


def main() -> int:
    wanted = json.loads(sys.argv[1])
    engine = wanted.get("engine", {})
    has_text = not engine.get("skip_tokenizer", False)
    try:
        serve(
            resolve(wanted.get("flags", {})),
            fake_engine.launch(**engine),
            load_text=lambda facts: text_tools() if has_text else None,
            console=Console(),
        )
    except TwinpoolError as error:
        print_error(error.message, error.hint)
        return exit_code_of(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
