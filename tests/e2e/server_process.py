"""A server in a process of its own: start it, wait for it, talk to it, end it.

One class for both, the fake engine (`fake`) and a real model (`real`): a test can take either.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[2]
LISTENING = re.compile(r"listening on (http://\S+);")
WAIT_S = 60.0


class ServerProcess:
    """One server process.

    Args:
        command: The program and its arguments.
        environment: Variables on top of the test's own.
    """

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
                **(environment or {}),
            },
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._url: str | None = None

    @classmethod
    def fake(cls, flags: dict[str, Any] | None = None, **engine: Any) -> ServerProcess:
        """Start a front over the fake engine, on a free port."""
        wanted = {"flags": {"port": 0, **(flags or {})}, "engine": engine}
        script = Path(__file__).with_name("serve_fake.py")
        return cls([sys.executable, str(script), json.dumps(wanted)])

    @classmethod
    def real(cls, *arguments: str, environment: dict[str, str] | None = None) -> ServerProcess:
        """Start `twinpool serve` with a free port and more arguments."""
        program = "from twinpool.cli.main import main; main()"
        command = [sys.executable, "-c", program, "serve", "--port", "0", *arguments]
        return cls(command, environment)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stderr(self) -> str:
        """Everything that was printed on stderr so far."""
        return "".join(self._lines)

    @property
    def url(self) -> str:
        """Where it listens; waits until it says so."""
        if self._url is None:
            wait_until(lambda: self._is_over() or LISTENING.search(self.stderr) is not None)
            found = LISTENING.search(self.stderr)
            assert found is not None, f"it does not listen:\n{self.stderr}"
            self._url = found.group(1)
        return self._url

    @property
    def engine_pid(self) -> int:
        """Process id of the engine."""
        (child,) = psutil.Process(self.pid).children()
        return int(child.pid)

    def http(self, **options: Any) -> httpx.Client:
        """Return a client; the caller closes it."""
        # Loading certificates that plain HTTP never looks at takes longer than most tests.
        return httpx.Client(base_url=self.url, timeout=WAIT_S, verify=False, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        with self.http() as http:
            return http.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        with self.http() as http:
            return http.post(path, **options)

    def wait_ready(self, timeout_s: float = WAIT_S) -> ServerProcess:
        """Wait until `/ready` answers 200."""
        with self.http() as http:
            wait_until(lambda: self._is_over() or http.get("/ready").status_code == 200, timeout_s)
        assert not self._is_over(), f"it ended:\n{self.stderr}"
        return self

    def snapshot(self) -> dict[str, Any]:
        """Return the snapshot of `/server_info`."""
        snapshot: dict[str, Any] = self.get("/server_info").json()["snapshot"]
        return snapshot

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Wait for its end; return its exit code."""
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def stdout(self) -> str:
        """Everything that was printed on stdout; only after its end."""
        assert self._process.stdout is not None
        return self._process.stdout.read()

    def kill(self) -> None:
        """End it at once, whatever it does; the engine follows by itself."""
        if not self._is_over():
            self._process.kill()
        self._process.wait()
        self._reader.join(WAIT_S)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _is_over(self) -> bool:
        return self._process.poll() is not None

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait until something holds.

    Raises:
        AssertionError: If it does not hold in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """True while a process is there and no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
