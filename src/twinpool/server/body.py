"""Reading a request's body: limits before work, then strict JSON into a schema.

Whatever bytes a client sends, the outcome is a validated model or an `ApiError`. Knows no schema.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from twinpool.server.errors import ApiError, bad_request

BODY_TIMEOUT_S = 60.0

Schema = TypeVar("Schema", bound=BaseModel)


async def read_schema(request: Request, schema: type[Schema], max_body_bytes: int) -> Schema:
    """Read and validate the body.

    Args:
        request: The request, its body not read yet.
        schema: What the body must be.
        max_body_bytes: Longest body.

    Raises:
        ApiError: 413 when it is too long, 408 when it does not come, 415 when it is compressed,
            400 for anything else that is wrong with it.
        ClientDisconnect: If the client went before all of it was there.
    """
    return parse_schema(await read_body(request, max_body_bytes), schema)


async def read_body(request: Request, max_body_bytes: int) -> bytes:
    """Read the body up to its limit; see `read_schema` for what it raises."""
    _check_headers(request, max_body_bytes)
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > max_body_bytes:
                    raise _too_long(max_body_bytes)
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408,
            f"the body did not arrive within {BODY_TIMEOUT_S:g} s",
            headers={"Connection": "close"},
        ) from None
    return b"".join(parts)


def parse_schema(body: bytes, schema: type[Schema]) -> Schema:
    """Validate JSON bytes.

    Raises:
        ApiError: 400, with the path of the first field at fault.
    """
    try:
        plain = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from None
    try:
        return schema.model_validate(plain)
    except ValidationError as error:
        raise _first_error(error) from None


def _check_headers(request: Request, max_body_bytes: int) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(415, f"Content-Encoding {encoding!r} is not supported; send plain JSON")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > max_body_bytes:
        raise _too_long(max_body_bytes)


def _too_long(max_body_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is longer than {max_body_bytes} bytes; send less, or raise --max-body-bytes",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def _first_error(error: ValidationError) -> ApiError:
    # Inputs are left out of the message: they can be huge, and they are the client's.
    first: Any = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    path = ".".join(str(part) for part in first["loc"] if not _is_branch(part))
    return bad_request(f"{path}: {message}" if path else message, path or None)


def _is_branch(part: int | str) -> bool:
    """True for the names that pydantic gives to members of a union."""
    return isinstance(part, str) and (part in {"str", "int"} or "[" in part)


__all__ = ["ClientDisconnect", "parse_schema", "read_body", "read_schema"]
