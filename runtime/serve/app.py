"""The routes.

Knows: paths, methods, who may use them, how errors are told. Does not know: how an answer comes about.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import SERVER, HttpError
from .generate import chat, completions
from .page import page
from .protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from .state import State
from .tokens import detokenize, tokenize
from .wire import Gone

log = logging.getLogger("draftline.serve")
GUARDED = ("/v1", "/tokenize", "/detokenize")
"""Paths that want an API key, where there is one."""
CSP = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""The status page needs nothing from elsewhere, and may have nothing."""
Handler = Callable[[Request, State], Awaitable[Response]]


def build(state: State) -> FastAPI:
    """The application."""
    app = FastAPI(title="draftline", version=version("draftline"), docs_url=None, redoc_url=None)
    bodies: list[tuple[str, Handler, Any]] = [
        ("/v1/completions", completions, CompletionBody),
        ("/v1/chat/completions", chat, ChatBody),
        ("/tokenize", tokenize, TokenizeBody),
        ("/detokenize", detokenize, DetokenizeBody),
    ]
    for path, handler, body in bodies:
        schema = {"requestBody": {"content": {"application/json": {"schema": body.model_json_schema()}}}}
        app.add_api_route(path, _bound(handler, state), methods=["POST"], name=handler.__name__, openapi_extra=schema)
    looks: list[tuple[str, Handler]] = [
        ("/v1/models", models),
        ("/v1/models/{name:path}", model),
        ("/health", health),
        ("/metrics", metrics),
        ("/version", show_version),
        ("/", status),
    ]
    for path, handler in looks:
        app.add_api_route(path, _bound(handler, state), methods=["GET"], name=handler.__name__)
    app.add_exception_handler(HttpError, _told)
    app.add_exception_handler(HTTPException, _routing)
    app.add_middleware(Guard, state=state)
    return app


def _bound(handler: Handler, state: State) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request, state)
        except (Gone, ClientDisconnect):
            return Response(status_code=499)  # nobody reads it
        except HttpError as error:
            return error.response()
        except Exception:  # a fault of ours: the client is told in OpenAI's shape, the log has the traceback
            log.exception("%s %s", request.method, request.url.path)
            message = "the server has made a mistake; its log says more"
            return HttpError(500, message, kind=SERVER, code="internal_error").response()

    return endpoint


async def models(request: Request, state: State) -> Response:
    """``/v1/models``"""
    return JSONResponse({"object": "list", "data": [_model(name, state) for name in state.ready().names]})


async def model(request: Request, state: State) -> Response:
    """``/v1/models/NAME``"""
    return JSONResponse(_model(state.check_model(request.path_params["name"]), state))


def _model(name: str, state: State) -> dict[str, Any]:
    shared = {"object": "model", "created": state.created, "owned_by": "draftline"}
    return {"id": name, **shared, "max_model_len": state.ready().max_len}


async def health(request: Request, state: State) -> Response:
    """``/health``: 200 while requests are taken, else 503 with the reason."""
    state.ready()
    return JSONResponse({"status": "ready"})


async def metrics(request: Request, state: State) -> Response:
    """``/metrics``"""
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def show_version(request: Request, state: State) -> Response:
    """``/version``"""
    return JSONResponse({"version": version("draftline")})


async def status(request: Request, state: State) -> Response:
    """``/``: the status page."""
    return HTMLResponse(page(state), headers={"Content-Security-Policy": CSP})


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error.response()


async def _routing(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return HttpError(error.status_code, message, code=code, headers=error.headers or {}).response()


class Guard:
    """Lets in who has a key, while the server takes requests."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app, self._state = app, state
        self._keys = [key.encode() for key in state.options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED) and self._keys:
            given = Request(scope).headers.get("authorization", "")
            scheme, _, key = given.partition(" ")
            known = [hmac.compare_digest(key.strip().encode(), one) for one in self._keys]
            if scheme.lower() != "bearer" or not any(known):
                error = HttpError(
                    401,
                    "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                    kind="authentication_error",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)
