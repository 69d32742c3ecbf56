"""The server as a process: boot, disconnects, a dying engine, signals, exit codes."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, is_running, wait_until

from fake_engine import Trouble

CONTEXT = 100_000
ENDLESS = {"prompt": [Trouble.SLOW], "max_tokens": 50_000, "ignore_eos": True}
HANGING = {"prompt": [Trouble.HANG], "max_tokens": 50_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerProcess]:
    """A server that tests share when they leave it as it was."""
    with ServerProcess.fake(flags={"api_keys": ["key"]}, context_tokens=CONTEXT) as server:
        yield server.wait_ready()


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server of a test's own."""
    with ServerProcess.fake(context_tokens=CONTEXT) as server:
        yield server.wait_ready()


def _is_idle(server: ServerProcess, key: str = "") -> bool:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    snapshot = server.get("/server_info", headers=headers).json()["snapshot"]
    return bool(snapshot["num_running"] == snapshot["num_waiting"] == 0)


def _open_stream(server: ServerProcess, body: dict[str, object]) -> socket.socket:
    """Send a streamed completion and return the socket once its first token is there."""
    host, port = server.url.removeprefix("http://").split(":")
    payload = json.dumps({**body, "stream": True, "return_token_ids": True}).encode()
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Authorization: Bearer key\r\nContent-Length: %d\r\n\r\n" % len(payload) + payload
    )
    received = b""
    while b"token_ids" not in received:
        part = sock.recv(65536)
        assert part, received
        received += part
    return sock


# ---- on the shared server


def test_boot_progress_goes_to_stderr(shared: ServerProcess) -> None:
    assert "loading weights" in shared.stderr
    assert "ready: tiny-hybrid on http://127.0.0.1:" in shared.stderr


def test_a_stream_whose_client_goes_away_is_aborted(shared: ServerProcess) -> None:
    sock = _open_stream(shared, ENDLESS)
    assert not _is_idle(shared, "key")
    sock.close()
    wait_until(lambda: _is_idle(shared, "key"))


def test_a_request_whose_client_goes_away_is_aborted_before_its_answer(
    shared: ServerProcess,
) -> None:
    host, port = shared.url.removeprefix("http://").split(":")
    payload = json.dumps(ENDLESS).encode()
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n"
        b"Content-Length: %d\r\n\r\n" % len(payload) + payload
    )
    wait_until(lambda: not _is_idle(shared, "key"))
    sock.close()
    wait_until(lambda: _is_idle(shared, "key"))


def test_a_client_that_goes_away_inside_its_body_leaves_nothing(shared: ServerProcess) -> None:
    host, port = shared.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=30)
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n"
        b"Content-Length: 1000\r\n\r\n{"
    )
    sock.close()
    assert shared.get("/health").status_code == 200
    assert "Traceback" not in shared.stderr


def test_what_is_no_http_gets_a_nested_error(shared: ServerProcess) -> None:
    host, port = shared.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_an_abort_storm_leaves_nothing_behind(shared: ServerProcess) -> None:
    def one(_n: int) -> None:
        _open_stream(shared, {**ENDLESS, "n": 2}).close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))
    wait_until(lambda: _is_idle(shared, "key"))
    headers = {"Authorization": "Bearer key"}
    reply = shared.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2}, headers=headers)
    assert reply.json()["choices"][0]["text"] == "ab"
    assert "Traceback" not in shared.stderr


def test_a_key_is_never_printed_nor_shown_in_the_environment_of_the_engine(
    shared: ServerProcess,
) -> None:
    info = shared.get("/server_info", headers={"Authorization": "Bearer key"}).json()
    assert info["settings"]["api_keys"]["value"] == "1 set"
    assert '"key"' not in shared.stderr


# ---- an engine that dies


@pytest.mark.parametrize("body", [HANGING, ENDLESS])
def test_a_killed_engine_gives_errors_at_once_and_comes_back(
    server: ServerProcess, body: dict[str, object]
) -> None:
    sock = _open_stream(server, body)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        whole = pool.submit(server.post, "/v1/completions", json=body)
        wait_until(lambda: len(psutil_children(server)) == 1)
        first = server.engine_pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: server.get("/health").status_code == 503)
        tail = b"".join(iter(lambda: sock.recv(65536), b""))
        assert b'"code":"engine_died"' in tail
        assert b"[DONE]" not in tail
        response = whole.result(timeout=30)
    assert response.status_code in (500, 503)
    assert response.json()["error"]["type"] == "server_error"
    sock.close()
    server.wait_ready()
    assert server.get("/health").status_code == 200
    assert server.engine_pid != first
    reply = server.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2})
    assert reply.json()["choices"][0]["text"] == "ab"
    assert "killed by signal 9; restart 1" in server.stderr
    assert "twinpool:engine_restarts_total 1.0" in server.get("/metrics").text


def psutil_children(server: ServerProcess) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(server.pid).children()]


def test_a_step_that_raises_is_logged_and_answered_without_its_words(
    server: ServerProcess,
) -> None:
    body = {"prompt": [Trouble.RAISE], "max_tokens": 9}
    response = server.post("/v1/completions", json=body)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_died"
    assert "broke" not in response.text
    server.wait_ready()
    assert "the step broke" in server.stderr
    assert server.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize("is_busy", [False, True])
def test_the_engine_follows_a_front_that_is_killed(server: ServerProcess, is_busy: bool) -> None:
    engine = server.engine_pid
    sock = _open_stream(server, HANGING) if is_busy else None
    server.kill()
    wait_until(lambda: not is_running(engine))
    if sock is not None:
        sock.close()


def test_the_engine_does_not_end_by_a_signal_to_the_group(server: ServerProcess) -> None:
    os.kill(server.engine_pid, signal.SIGTERM)
    os.kill(server.engine_pid, signal.SIGINT)
    assert server.post("/v1/completions", json={"prompt": "a"}).status_code == 200


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_with_0(number: signal.Signals, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    with ServerProcess.fake(gate_path=str(gate)) as server:
        engine = server.wait_ready().engine_pid
        sock = _open_stream(server, {"prompt": [Trouble.GATE], "max_tokens": 9})
        server.signal(number)
        wait_until(lambda: server.get("/ready").status_code == 503)
        assert server.get("/health").status_code == 200
        refused = server.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert "retry-after" in refused.headers
        gate.touch()
        tail = b"".join(iter(lambda: sock.recv(65536), b""))
        sock.close()
        assert b"data: [DONE]" in tail
        assert server.wait() == 0
        assert not is_running(engine)
        assert server.stdout() == ""


def test_an_idle_server_stops_at_once(server: ServerProcess) -> None:
    with server.http() as http:  # an idle connection does not keep it
        assert http.get("/health").status_code == 200
        server.signal(signal.SIGTERM)
        assert server.wait(20) == 0


def test_what_outlasts_the_drain_timeout_is_cut_with_an_error() -> None:
    with ServerProcess.fake(flags={"drain_timeout_s": 0.2}, context_tokens=CONTEXT) as server:
        server.wait_ready()
        sock = _open_stream(server, ENDLESS)
        server.signal(signal.SIGTERM)
        tail = b"".join(iter(lambda: sock.recv(65536), b""))
        assert b'"error"' in tail
        assert server.wait(20) == 0
        assert "cut off" in server.stderr
        sock.close()


def test_a_second_signal_stops_at_once(server: ServerProcess) -> None:
    sock = _open_stream(server, HANGING)
    engine = server.engine_pid
    server.signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in server.stderr)
    server.signal(signal.SIGTERM)
    assert server.wait(20) == 128 + signal.SIGTERM
    wait_until(lambda: not is_running(engine))
    sock.close()


def test_a_signal_while_the_engine_is_loading_exits_with_0() -> None:
    with ServerProcess.fake(load_s=60.0) as server:
        assert server.get("/health").status_code == 200
        assert server.get("/ready").status_code == 503
        engine = server.engine_pid
        server.signal(signal.SIGTERM)
        assert server.wait(30) == 0
        wait_until(lambda: not is_running(engine))


# ---- exit codes


def test_a_port_that_is_taken_is_an_error_with_a_hint(server: ServerProcess) -> None:
    port = int(server.url.rpartition(":")[2])
    with ServerProcess.fake(flags={"port": port}) as second:
        assert second.wait(30) == 1
        assert f"error: port {port} on 127.0.0.1 is in use" in second.stderr
        assert "hint: give another --port" in second.stderr
        assert "Traceback" not in second.stderr


def test_an_address_that_is_not_there_is_an_error_with_a_hint() -> None:
    with ServerProcess.fake(flags={"host": "no such host"}) as server:
        assert server.wait(30) == 1
        assert "error: cannot listen on no such host" in server.stderr
        assert "Traceback" not in server.stderr


def test_an_engine_that_refuses_to_come_up_is_an_error_with_its_hint() -> None:
    with ServerProcess.fake(boot_error="no such model") as server:
        assert server.wait(30) == 2
        assert "error: no such model" in server.stderr
        assert "hint: choose another" in server.stderr
        assert "Traceback" not in server.stderr


def test_an_engine_that_dies_coming_up_is_an_error() -> None:
    with ServerProcess.fake(crash_at_boot=True) as server:
        assert server.wait(30) == 1
        assert "error: the engine process ended with code 9" in server.stderr
