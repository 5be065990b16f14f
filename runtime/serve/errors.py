"""Errors as HTTP says them, in OpenAI's shape.

Knows: status codes, types, how pydantic and the error tree map onto them. Does not know: routes, requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from draftline.graph.errors import CapacityError, DraftlineError, RequestError, WorkerError, nearest
from draftline.stages.sampling.params import SamplingParams

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
RETRY = MappingProxyType({"Retry-After": "1"})
INVALID = "invalid_request_error"
SERVER = "server_error"


class HttpError(Exception):
    """An answer that is an error. ``param``: the field of the request that is wrong; ``code``: for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code, self.headers = status, kind, param, code, headers

    def body(self) -> dict[str, Any]:
        """``{"error": {"message", "type", "param", "code"}}``"""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, dict(self.headers))


def bad(param: str | None, message: str, code: str | None = None) -> HttpError:
    """400 that names a field."""
    return HttpError(400, f"{param}: {message}" if param else message, param=param, code=code)


def unavailable(message: str, code: str, headers: Mapping[str, str] = NO_HEADERS) -> HttpError:
    """503: not now, or not any more."""
    return HttpError(503, message, kind="service_unavailable", code=code, headers=headers)


def of(error: DraftlineError) -> HttpError:
    """An error of the tree as HTTP says it."""
    if isinstance(error, RequestError):
        named = re.match(r"prompt: (\w+) ", str(error))
        param = named[1] if named and named[1] in SamplingParams.__dataclass_fields__ else "prompt"
        return HttpError(400, str(error), param=param)
    if isinstance(error, CapacityError):
        return HttpError(429, str(error), kind="rate_limit_error", code="over_capacity", headers=RETRY)
    if isinstance(error, WorkerError):
        return unavailable(f"the workers are down for good: {error}", "workers_lost")
    return HttpError(500, str(error), kind=SERVER, code="internal_error")


def failed(message: str | None) -> HttpError:
    """500 for a request that made a stage fail; the server goes on."""
    return HttpError(500, f"the request failed: {message}", kind=SERVER, code="request_failed")


def of_validation(error: ValidationError, known: Iterable[str]) -> HttpError:
    """400 for the first field that is wrong; an unknown one is answered with the nearest of ``known``."""
    first = error.errors(include_url=False)[0]
    param = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        top = len(first["loc"]) == 1
        near = nearest(str(first["loc"][-1]), known) if top else ""
        return HttpError(400, f"{param}: unknown field{near}", param=param, code="unknown_field")
    if first["type"] == "missing":
        return HttpError(400, f"{param}: is missing", param=param, code="missing_field")
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return HttpError(400, f"{param}: {message}{_shown(first['input'])}", param=param, code="invalid_value")


def _path(loc: Sequence[Any]) -> str:
    """``messages[0].content`` for ``("messages", 0, "content")``."""
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out or "body"


def _shown(value: Any) -> str:
    """The value as far as it helps; in ASCII, for it may hold what no encoding has."""
    if isinstance(value, (bool, float, type(None))) or (isinstance(value, int) and abs(value) < 10**18):
        return f"; got {value!r}"
    return f"; got {value!a}" if isinstance(value, str) and len(value) <= 40 else ""
