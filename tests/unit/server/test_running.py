"""Sockets, and the service that settings describe."""

from __future__ import annotations

import msgspec
import pytest

from fake_engine import launch
from twinpool.engine.client import EngineClient
from twinpool.engine.protocol import EngineSettings
from twinpool.errors import TwinpoolError
from twinpool.server.launch import engine_launch
from twinpool.server.run import bind, build_service, is_loopback, shown_address
from twinpool.settings.resolve import resolve


def test_port_0_takes_a_free_one_and_the_address_is_shown() -> None:
    with bind("127.0.0.1", 0) as sock:
        host, port = sock.getsockname()
        assert port > 0
        assert shown_address(sock) == f"{host}:{port}"


def test_a_taken_port_is_an_error_with_a_hint() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(TwinpoolError, match=f"port {port} .* in use") as caught:
            bind("127.0.0.1", port)
        assert "--port" in caught.value.hint


def test_a_host_that_is_none_is_an_error_with_a_hint() -> None:
    with pytest.raises(TwinpoolError, match="cannot listen on"):
        bind("no such host", 0)


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback(host: str, is_ours: bool) -> None:
    assert is_loopback(host) == is_ours


def test_the_default_is_loopback() -> None:
    assert is_loopback(resolve({}).server.host)


def test_a_service_follows_the_settings() -> None:
    resolved = resolve(
        {
            "api_keys": ["one", "two"],
            "served_model_name": "mine",
            "max_queue": 3,
            "max_choices": 4,
            "max_prompts": 5,
            "max_stop_strings": 6,
            "max_body_bytes": "7KiB",
            "skip_tokenizer_init": True,
        }
    )
    service = build_service(resolved, EngineClient(launch()))
    limits = service.limits
    assert (limits.max_queue, limits.max_choices, limits.max_prompts) == (3, 4, 5)
    assert (limits.max_stop_strings, limits.max_body_bytes) == (6, 7 * 1024)
    assert service.keys.check(b"Bearer two")
    assert service.keys.check(b"Bearer three") is None
    assert (service.served_name, service.skip_tokenizer) == ("mine", True)
    values = {value.name: value for value in service.settings}
    assert values["max_queue"].value == 3
    assert values["max_queue"].source == "flag"
    assert values["api_keys"].value == "2 set"
    assert "pool_memory" not in values  # the engine's to tell


def test_the_engine_gets_flags_and_file_as_they_were_given() -> None:
    flags = {"pool_memory": "64MiB", "skip_tokenizer_init": True, "page_size": "16"}
    made = engine_launch(flags, {"max_queue": 5})
    settings = msgspec.msgpack.decode(made.settings, type=EngineSettings)
    assert (settings.flags, settings.file) == (flags, {"max_queue": 5})
    assert resolve(settings.flags).memory.page_size == 16
