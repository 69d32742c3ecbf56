"""The Prometheus text of a live engine, from a URL or a file, bounded in size and time.

Knows no metric; `telemetry.scrape` reads the text.
"""

from __future__ import annotations

import http.client
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from twinpool.errors import ConfigError, StoreError

TIMEOUT_S = 10.0
MAX_BYTES = 32 * 2**20


def read_metrics_text(source: str) -> str:
    """Read a Prometheus text.

    Args:
        source: A URL of `http` or `https` (without a path, `/metrics` is asked for), a file, or
            `-` for standard input.

    Raises:
        ConfigError: If it is neither a file nor such a URL.
        StoreError: If it cannot be read, or is larger than 32 MiB.
    """
    scheme, separator, _ = source.partition("://")
    if separator:
        if scheme.lower() not in ("http", "https"):
            raise ConfigError(
                f"--metrics: {scheme[:20]}:// cannot be read",
                hint="use http://, https:// or a file",
            )
        raw = _fetch(source)
    else:
        raw = _read(source)
    if len(raw) > MAX_BYTES:
        raise StoreError(
            f"the metrics of {source} are larger than {MAX_BYTES // 2**20} MiB",
            hint="give the text of one engine, not that of a gateway",
        )
    return raw.decode("utf-8", errors="replace")


def _read(source: str) -> bytes:
    try:
        if source == "-":
            if sys.stdin is None:
                raise ConfigError(
                    "--metrics: standard input is closed", hint="pipe the text into it"
                )
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with Path(source).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        host = source.partition("/")[0]
        is_address = ":" in host and host.rpartition(":")[2].isdigit()
        raise ConfigError(
            f"--metrics: {source} does not exist",
            hint=f"for a server, write http://{source}" if is_address else "give a URL or a file",
        ) from None
    except OSError as error:
        raise StoreError(
            f"--metrics: {source} cannot be read: {error.strerror}", hint="give a URL or a file"
        ) from None


def _fetch(url: str) -> bytes:
    try:
        parts = urllib.parse.urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"--metrics: {url} is not a URL", hint="write http://host:port/metrics"
        ) from None
    if parts.path in ("", "/") and not parts.query:
        url = urllib.parse.urlunsplit(parts._replace(path="/metrics"))
    try:
        request = urllib.request.Request(url, headers={"Accept": "text/plain"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise StoreError(
            f"{url} answers {error.code} {error.reason}",
            hint="start SGLang with --enable-metrics"
            if error.code == 404
            else "fetch the text by other means and give the file",
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise StoreError(
            f"{url} cannot be read: {reason}",
            hint="is the engine up, and is this its address? a file with the text does as well",
        ) from None
    return body
