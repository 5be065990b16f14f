"""The body of a request: bytes from the network to checked fields.

Knows: JSON, limits of size and time. Does not know: what fields mean.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from .errors import HttpError, bad, of_validation
from .protocol import UNSUPPORTED, Body
from .state import Options

B = TypeVar("B", bound=Body)


async def read(request: Request, kind: type[B], options: Options) -> B:
    """The body as ``kind``. Raises HttpError 400, 408, 413 and 415."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HttpError(415, "the header Content-Type must be application/json", code="unsupported_media_type")
    try:
        async with asyncio.timeout(options.receive):
            raw = await _bytes(request, options.max_body)
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {options.receive:g} s", code="timeout") from None
    except ClientDisconnect:
        raise HttpError(400, "the client went away") from None
    return fields(parse(raw), kind)


async def _bytes(request: Request, most: int) -> bytes:
    told = request.headers.get("content-length", "")
    parts, size = [], int(told) if told.isascii() and told.isdigit() and len(told) < 19 else 0
    if size <= most:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                break
            parts.append(part)
    if size > most:
        message = f"the body has more than {most} bytes (--max-body)"
        raise HttpError(413, message, code="body_too_large", headers={"Connection": "close"})
    return b"".join(parts)


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object. Raises HttpError 400."""
    try:
        value = json.loads(raw, parse_constant=_constant)
    except RecursionError:
        raise bad(None, "the body is nested too deeply", "invalid_json") from None
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        raise bad(None, f"the body is not JSON: {error}", "invalid_json") from None
    if not isinstance(value, dict):
        raise bad(None, "the body must be a JSON object", "invalid_json")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def fields(value: dict[str, Any], kind: type[B]) -> B:
    """Checked fields. Raises HttpError 400 that names the first that is wrong."""
    wanted = dict(value)
    for name in UNSUPPORTED.keys() & value.keys() - kind.model_fields.keys():
        if value[name] is not None and value[name] != UNSUPPORTED[name]:
            raise bad(name, "is not supported", "unsupported_field")
        del wanted[name]
    try:
        return kind.model_validate(wanted)
    except ValidationError as error:
        raise of_validation(error, kind.model_fields) from None
