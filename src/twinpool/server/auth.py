"""API keys and prefix namespaces: who may ask, and whose cached prefixes they may meet.

Keeps digests only, so that no raw key reaches a log, a message or the engine.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable


class KeyRing:
    """The keys that are let in.

    Args:
        keys: The raw keys; none at all lets everybody in.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    @property
    def is_open(self) -> bool:
        """True when no key is asked for."""
        return not self._digests

    def check(self, authorization: bytes | None) -> bytes | None:
        """Check an Authorization header.

        Args:
            authorization: The header's value; None when there is none.

        Returns:
            The digest of the key that fits, empty for an open ring; None when none fits.

        Cost:
            The same for every key, right or wrong: all digests are compared in full.
        """
        if self.is_open:
            return b""
        scheme, _, key = (authorization or b"").partition(b" ")
        given = _digest(key.strip())
        found: bytes | None = None
        for digest in self._digests:
            if hmac.compare_digest(given, digest):
                found = digest
        return found if scheme.lower() == b"bearer" else None


def namespace(key_digest: bytes, cache_salt: str | None) -> str:
    """Return the name of the prefix namespace of a key and a salt.

    Args:
        key_digest: What `KeyRing.check` returned.
        cache_salt: The request's own choice, if it made one.

    Returns:
        Empty when there is neither; else a hash from which neither can be read.
    """
    if not key_digest and cache_salt is None:
        return ""
    salted = b"" if cache_salt is None else b"\x01" + cache_salt.encode()
    return hashlib.sha256(b"namespace" + _digest(key_digest) + salted).hexdigest()[:32]


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
