"""Keys and namespaces."""

from __future__ import annotations

import hmac

import pytest

from twinpool.server import auth
from twinpool.server.auth import KeyRing, namespace


def test_an_open_ring_lets_everybody_in() -> None:
    assert KeyRing(()).check(None) == b""


@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic one", b"one", b"Bearer one two"],
)
def test_a_wrong_header_is_refused(header: bytes | None) -> None:
    assert KeyRing(("one", "two")).check(header) is None


def test_every_key_is_let_in_with_a_digest_of_its_own() -> None:
    ring = KeyRing(("one", "zwei-ü"))
    first = ring.check(b"Bearer one")
    second = ring.check(b"bearer  " + "zwei-ü".encode())
    assert first
    assert second
    assert first != second
    assert b"one" not in first


def test_all_keys_are_compared_in_constant_time_whichever_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[bytes] = []
    compare = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        calls.append(b)
        return compare(a, b)

    monkeypatch.setattr(auth.hmac, "compare_digest", counted)
    ring = KeyRing(("one", "two", "three"))
    for header in (b"Bearer one", b"Bearer three", b"Bearer none"):
        calls.clear()
        ring.check(header)
        assert len(calls) == 3


def test_a_namespace_is_shared_by_equal_key_and_salt_only() -> None:
    spaces = {
        (key, salt): namespace(key, salt)
        for key in (b"", b"k1", b"k2")
        for salt in (None, "a", "b")
    }
    assert len(set(spaces.values())) == len(spaces)
    assert spaces[b"", None] == ""
    assert namespace(b"k1", "a") == spaces[b"k1", "a"]


def test_a_namespace_does_not_show_the_salt() -> None:
    assert "secret" not in namespace(b"", "secret")
