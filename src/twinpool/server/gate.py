"""The gate before every route: keys, cross-site posts, counting, and a last resort for faults.

A plain ASGI layer; knows paths but no bodies.
"""

from __future__ import annotations

import logging

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twinpool.server.errors import ApiError
from twinpool.server.service import Service

OPEN_PATHS = frozenset({"/health", "/ready"})

_log = logging.getLogger("twinpool.server")


class Gate:
    """Lets requests through to the application, or answers them itself.

    Args:
        app: What is behind it.
        service: Knows the keys and counts the answers.
        paths: Paths of the route table; others are counted as `other`.
    """

    def __init__(self, app: ASGIApp, service: Service, paths: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event; only HTTP passes."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        route = path if path in self._paths else "other"
        is_complete = False

        async def counted(message: Message) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                self._service.recorder.responded(route, message["status"])
                _log.debug("%s %s %d", scope["method"], route, message["status"])
            elif not message.get("more_body", False):
                is_complete = True
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, counted)
        except ApiError as error:
            await error.response()(scope, receive, counted)
        except ClientDisconnect:
            return
        except Exception:
            # A bug here must cost one answer, not the server. The request is not logged.
            _log.exception("%s %s failed", scope["method"], route)
            if not is_complete:
                raise  # the server closes the connection, so that nobody takes a part for a whole

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS:
            digest = self._service.keys.check(headers.get(b"authorization"))
            if digest is None:
                raise ApiError(
                    401,
                    "a valid API key is needed: Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            scope["key_digest"] = digest
        # A page on another site can post without a preflight as long as it does not say JSON.
        if scope["method"] == "POST" and b"origin" in headers:
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":
                raise ApiError(415, "a browser must send Content-Type: application/json")
