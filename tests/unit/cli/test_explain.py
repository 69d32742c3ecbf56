"""`twinpool explain`: reports, JSON keys, what flags change, and errors that say what to do."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run

TESTS = Path(__file__).parents[2]
DATA = TESTS / "data"
LOG = str(DATA / "logs" / "two_ranks.log")
GLM = str(DATA / "configs" / "zai-org--GLM-5.3-Flash.json")
KEYS = [
    "log",
    "boot",
    "state_slots",
    "kv_tokens",
    "state_bytes_per_slot",
    "conv_bytes_per_slot",
    "ssm_bytes_per_slot",
    "kv_bytes_per_token",
    "bounds",
    "token_equiv",
    "slots_per_request",
    "max_running_requests",
    "binding",
    "ratio",
    "page_size",
    "draft_tokens",
    "balanced_ratio",
    "splits",
    "concurrency",
    "workload",
    "provenance",
    "notes",
    "advice",
    "metrics",
]


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run the command with `--json` and return its document."""

    def explain(*argv: str) -> dict[str, Any]:
        code = run(["explain", *argv, "--json"])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        document: dict[str, Any] = json.loads(out)
        return document

    return explain


@pytest.fixture
def failed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the command and return its exit code and what it said on stderr."""

    def explain(*argv: str) -> tuple[int, str]:
        code = run(["explain", *argv])
        out, err = capsys.readouterr()
        assert out == ""
        return code, err

    return explain


def test_the_keys_are_the_same_with_and_without_a_log(
    explained: Callable[..., dict[str, Any]],
) -> None:
    with_log = explained(LOG)
    without = explained("--metrics", str(DATA / "metrics" / "vllm.txt"))
    assert list(with_log) == list(without) == KEYS
    assert with_log["metrics"] is None
    assert without["state_slots"] is None


def test_the_published_boot_is_explained(explained: Callable[..., dict[str, Any]]) -> None:
    found = explained(LOG)
    assert (found["state_slots"], found["kv_tokens"]) == (429, 5890560)
    assert found["bounds"]["kv_bytes_per_token"] == [5995, 5996]
    assert (found["slots_per_request"], found["max_running_requests"]) == (5, 85)
    assert found["binding"] == "state"
    assert found["ratio"] == pytest.approx(0.9, abs=0.005)
    assert found["provenance"]["slots_per_request"] == {
        "value": 5,
        "source": "measured",
        "why": "the cap line",
    }
    assert found["advice"] == [
        "for 128 requests: --max-mamba-cache-size 640, which leaves 3,293,440 KV tokens"
    ]


def test_a_model_gives_exact_bytes(explained: Callable[..., dict[str, Any]]) -> None:
    found = explained(LOG, "--model", GLM)
    assert found["state_bytes_per_slot"] == 73809920
    assert found["kv_bytes_per_token"] == 5995
    assert found["bounds"]["state_bytes_per_slot"] == [73809920, 73809920]
    by_ratio = {round(row["ratio"], 2): row for row in found["splits"]}
    assert by_ratio[0.25]["state_slots"] == 180
    assert by_ratio[0.25]["max_running_requests"] == 36


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (("--tp", "1"), "hint: it fits with --tp 2"),
        (("--kv-cache-dtype", "bfloat16"), "hint: it fits with --kv-cache-dtype fp8_e4m3"),
        (("--mamba-ssm-dtype", "bfloat16"), "hint: it fits with --mamba-ssm-dtype float32"),
    ],
)
def test_a_model_that_does_not_fit_is_an_error_that_names_the_flag(
    failed: Callable[..., tuple[int, str]], flags: tuple[str, ...], hint: str
) -> None:
    code, err = failed(LOG, "--model", GLM, *flags)
    assert code == 2
    assert "does not fit the log" in err
    assert err.endswith(hint + "\n")


def test_another_strategy_and_a_pin_are_tried_on_the_same_bytes(
    explained: Callable[..., dict[str, Any]],
) -> None:
    found = explained(
        LOG,
        "--mamba-radix-cache-strategy",
        "extra_buffer_lazy",
        "--max-mamba-cache-size",
        "192",
    )
    [asked] = [row for row in found["splits"] if row["name"] == "asked"]
    assert (asked["state_slots"], asked["max_running_requests"]) == (192, 48)
    assert round(asked["kv_tokens"] / 1e6, 2) == 8.81
    assert found["max_running_requests"] == 85


def test_an_average_context_gives_the_balanced_ratio(
    explained: Callable[..., dict[str, Any]],
) -> None:
    found = explained(LOG, "--average-context", "61560")
    assert found["balanced_ratio"] == pytest.approx(1.0, abs=0.01)
    best = found["concurrency"]
    assert best["state_slots"] == 5 * best["max_running_requests"]
    assert best["kv_tokens"] >= 61560 * best["max_running_requests"]
    assert "run at once rather than 85" in found["advice"][0]


def test_sessions_are_held_against_the_pools_as_they_are(
    explained: Callable[..., dict[str, Any]],
) -> None:
    found = explained(LOG, "--sessions", "48", "--session-context", "160000", "--running", "24")
    work = found["workload"]
    assert work["kv_tokens_needed"] == 7680000
    assert work["fits"] is True
    assert "1,789,440 KV tokens are missing" in found["advice"][0]
    assert f"--max-mamba-cache-size {work['state_slots']}" in found["advice"][0]


def test_metrics_beside_a_log_know_the_cap(explained: Callable[..., dict[str, Any]]) -> None:
    found = explained(LOG, "--metrics", str(DATA / "metrics" / "sglang_states_short.txt"))
    assert found["metrics"]["verdict"] == "concurrency-bound"
    signs = {sign["name"]: sign for sign in found["metrics"]["signs"]}
    assert signs["at the cap"]["holds"] is True
    assert signs["at the cap"]["numbers"] == "85 of 85 run"


@pytest.mark.parametrize("name", ["two_ranks", "restarts", "speculation", "post_capture"])
def test_reports_say_how_every_number_was_got(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", str(DATA / "logs" / f"{name}.log"), "--average-context", "9000"]) == 0
    pools = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    assert len(pools) > 7
    for line in pools:
        assert any(word in line for word in ("measured", "derived", "assumed", "flag")), line


def test_a_plain_transformer_has_one_pool(
    tmp_path: Path, explained: Callable[..., dict[str, Any]]
) -> None:
    log = tmp_path / "plain.log"
    log.write_text(
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 100000, K size: 4.00 GB, "
        "V size: 4.00 GB\n"
    )
    found = explained(str(log), "--average-context", "1000")
    assert (found["state_slots"], found["splits"], found["balanced_ratio"]) == (0, [], None)
    assert found["concurrency"]["max_running_requests"] == 100
    assert any("no state line" in note for note in found["notes"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_of_redirected_logs_are_read(
    tmp_path: Path, encoding: str, explained: Callable[..., dict[str, Any]]
) -> None:
    log = tmp_path / "x.log"
    log.write_text(Path(LOG).read_text(), encoding=encoding)
    assert explained(str(log))["state_slots"] == 429


def test_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, explained: Callable[..., dict[str, Any]]
) -> None:
    raw = io.BufferedReader(io.BytesIO(Path(LOG).read_bytes()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
    assert explained("-")["state_slots"] == 429


@pytest.mark.parametrize(
    ("argv", "code", "message", "hint"),
    [
        ((), 2, "nothing to explain", "give a LOG, or --metrics"),
        (("nope.log",), 2, "nope.log cannot be read: No such file", "to pipe it in"),
        ((GLM,), 1, "no pool was found; looked for", "level info"),
        ((LOG, "--page-size", "7"), 2, "no whole number of pages of 7", "leave it out"),
        ((LOG, "--page-size", "0"), 2, "--page-size: 0 is out of range", "use 1 to"),
        ((LOG, "--average-context", "0"), 2, "--average-context: 0 is out of range", "use 1"),
        ((LOG, "--sessions", "4"), 2, "--sessions needs --session-context", "a workload is"),
        ((LOG, "--mamba-full-memory-ratio", "nan"), 2, "ratio of state bytes", "above 0"),
        ((LOG, "--mamba-full-memory-ratio", "-1"), 2, "ratio of state bytes", "above 0"),
        (
            (LOG, "--mamba-radix-cache-strategy", "extra_bufer"),
            2,
            "'extra_bufer' is not known",
            "extra_buffer_lazy",
        ),
        (
            (
                LOG,
                "--mamba-radix-cache-strategy",
                "extra_buffer_lazy",
                "--disable-overlap-schedule",
            ),
            2,
            "extra_buffer_lazy needs overlap",
            "use extra_buffer",
        ),
        (
            ("--average-context", "9", "--metrics", str(DATA / "metrics" / "vllm.txt")),
            2,
            "--average-context needs a LOG",
            "beside --metrics",
        ),
        (("--metrics", "ftp://x/y"), 2, "ftp:// cannot be read", "https://"),
        (("--metrics", "http://"), 2, "http:// is not a URL", "http://host:port"),
        (("--metrics", "localhost:8000"), 2, "does not exist", "write http://localhost:8000"),
        (("--metrics", LOG), 2, "not Prometheus text", "unchanged"),
        (("--metrics", "a", "--metrics", "b", "--metrics", "c"), 2, "given 3 times", "twice"),
    ],
)
def test_errors_say_what_happened_and_what_to_change(
    failed: Callable[..., tuple[int, str]],
    argv: tuple[str, ...],
    code: int,
    message: str,
    hint: str,
) -> None:
    found, err = failed(*argv)
    assert found == code
    error, said = err.strip().splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert said.startswith("hint: ")
    assert hint in said


@pytest.fixture
def server() -> Iterator[str]:
    """An HTTP server with metrics at `/metrics` and a 404 elsewhere."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = (DATA / "metrics" / "vllm.txt").read_bytes() if found else b"no"
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/", "/metrics"])
def test_a_live_engine_is_asked_for_its_metrics(
    server: str, path: str, explained: Callable[..., dict[str, Any]]
) -> None:
    assert explained("--metrics", server + path)["metrics"]["engine"] == "vllm"


def test_an_engine_without_metrics_or_none_at_all_is_an_error(
    server: str, failed: Callable[..., tuple[int, str]]
) -> None:
    code, err = failed("--metrics", f"{server}/other")
    assert code == 1
    assert "answers 404" in err
    assert "--enable-metrics" in err
    code, err = failed("--metrics", "http://127.0.0.1:1/metrics")
    assert code == 1
    assert "cannot be read" in err
    assert "is the engine up" in err


def test_metrics_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: Callable[..., tuple[int, str]]
) -> None:
    monkeypatch.setattr("twinpool.cli.metrics_source.MAX_BYTES", 100)
    file = tmp_path / "long.txt"
    file.write_text("x 1\n" * 100)
    code, err = failed("--metrics", str(file))
    assert code == 1
    assert "larger than" in err


def test_it_runs_without_torch_and_the_server_stack() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'starlette', 'uvicorn', 'pydantic', 'tokenizers', 'psutil'):\n"
        "    sys.modules[name] = None\n"
        "from twinpool.cli.main import run\n"
        f"sys.exit(run(['explain', {LOG!r}, '--json']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
