"""The ASGI application: the route table, and nested errors for whatever goes wrong.

Knows which path goes where; opens no socket.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from twinpool.server.chat import ChatEndpoint
from twinpool.server.completions import CompletionsEndpoint
from twinpool.server.errors import ApiError
from twinpool.server.gate import Gate
from twinpool.server.operations import Operations
from twinpool.server.service import Service


def build_app(service: Service) -> ASGIApp:
    """Return the application over a service."""
    operations = Operations(service)
    routes = [
        Route("/v1/chat/completions", ChatEndpoint(service), methods=["POST"]),
        Route("/v1/completions", CompletionsEndpoint(service), methods=["POST"]),
        Route("/v1/models", operations.models, methods=["GET"]),
        Route("/v1/models/{name:path}", operations.model, methods=["GET"]),
        Route("/v1/tokenize", operations.tokenize, methods=["POST"]),
        Route("/v1/detokenize", operations.detokenize, methods=["POST"]),
        Route("/health", operations.health, methods=["GET"]),
        Route("/ready", operations.ready, methods=["GET"]),
        Route("/metrics", operations.metrics, methods=["GET"]),
        Route("/server_info", operations.server_info, methods=["GET"]),
        Route("/model_info", operations.model_info, methods=["GET"]),
        Route("/flush_cache", operations.flush_cache, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            ApiError: _api_error,
            Exception: _fault,
        },
    )
    # A path with a slash too many is a 404 like any other, not a redirect that drops the body.
    app.router.redirect_slashes = False
    return Gate(app, service, frozenset(route.path for route in routes))


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "registered for ApiError only"
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException only"
    path = request.url.path[:100]
    message = {
        404: f"there is no {path}",
        405: f"{request.method} does not go with {path}",
    }.get(error.status_code, error.detail)
    headers = dict(error.headers or {})
    return ApiError(
        error.status_code, message, code=_codes.get(error.status_code), headers=headers
    ).response()


async def _fault(_request: Request, _error: Exception) -> Response:
    # Starlette raises it again after this answer, and the gate logs it.
    return ApiError(500, "internal error; the server's log has more", code="internal").response()


_codes = {404: "not_found", 405: "method_not_allowed"}
