"""HTTP errors in the nested form that OpenAI clients read.

Knows which status an error of the tree deserves; knows no route.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from twinpool.engine.client import EngineGone, EngineLost
from twinpool.errors import CapacityError, ConfigError, TwinpoolError

INVALID = "invalid_request_error"
SERVER = "server_error"
RETRY_AFTER_S = 1


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The inner object.

    Attributes:
        message: What happened, with the numbers, and what to change.
        type: The family of the error.
        param: The field at fault, if it is one.
        code: A word that programs can match.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The whole body of an error."""

    error: ErrorBody


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP status.
        message: What happened, with the numbers, and what to change.
        param: The field at fault, if it is one.
        code: A word that programs can match.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        kind = SERVER if status >= 500 else INVALID
        self.body = ErrorBody(message=message, type=kind, param=param, code=code)

    def encode(self) -> bytes:
        """Return the JSON body."""
        return msgspec.json.encode(ErrorEnvelope(self.body))

    def response(self) -> Response:
        """Return the HTTP response."""
        return Response(
            self.encode(), self.status, headers=self.headers, media_type="application/json"
        )


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400."""
    return ApiError(400, message, param=param, code=code)


def unsupported(what: str, param: str, hint: str) -> ApiError:
    """Return a 400 for something that the API has and this server does not do."""
    return bad_request(f"{what} is not supported; {hint}", param, "unsupported_parameter")


def unavailable(message: str, code: str, retry_after_s: int = RETRY_AFTER_S) -> ApiError:
    """Return a 503 that says when to come back."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(retry_after_s)})


def from_twinpool(error: TwinpoolError, known_params: frozenset[str] = frozenset()) -> ApiError:
    """Return the answer for an error of the tree.

    Args:
        error: What was raised.
        known_params: Field names; a message that begins with one names the field at fault.
    """
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    if isinstance(error, EngineLost):
        return ApiError(500, message, code="engine_died")
    if isinstance(error, EngineGone):
        return unavailable(message, "engine_unavailable")
    if isinstance(error, ConfigError | CapacityError):
        word = error.message.partition(" ")[0].partition("[")[0]
        code = "capacity_exceeded" if isinstance(error, CapacityError) else None
        return bad_request(message, word if word in known_params else None, code)
    return ApiError(500, message, code="internal_error")
