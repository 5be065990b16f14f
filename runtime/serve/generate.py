"""``/v1/completions`` and ``/v1/chat/completions``: a body in, an answer out, whole or streamed.

Knows: the order of things. Does not know: how any of them is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .answers import Chunks, Form, whole
from .jobs import Job, chat_jobs, completion_jobs
from .pieces import Piece
from .protocol import ChatBody, CompletionBody, Generation
from .read import read
from .run import begun, merged
from .state import State
from .wire import Events, unless_gone


async def completions(request: Request, state: State) -> Response:
    """Raises HttpError."""
    state.ready()
    body = await read(request, CompletionBody, state.options)
    model = state.check_model(body.model)
    return await _answer(request, state, body, model, await completion_jobs(body, state.ready()), chat=False)


async def chat(request: Request, state: State) -> Response:
    """Raises HttpError."""
    state.ready()
    body = await read(request, ChatBody, state.options)
    model = state.check_model(body.model)
    return await _answer(request, state, body, model, await chat_jobs(body, state.ready()), chat=True)


async def _answer(
    request: Request, state: State, body: Generation, model: str, jobs: Sequence[Job], *, chat: bool
) -> Response:
    told = body.stream_options
    form = Form(
        chat,
        model,
        jobs,
        state.ready().spelling,
        body.n,
        told is not None and told.include_usage,
        told is not None and told.continuous_usage_stats,
    )
    if not body.stream:
        return JSONResponse(whole(form, await unless_gone(request, _all(jobs, state))))
    stack = AsyncExitStack()
    try:  # before the answer's head is sent, so that a full queue is a status code
        choices = await stack.enter_async_context(begun(jobs, state))
    except BaseException:
        await stack.aclose()
        raise
    return Events(_objects(Chunks(form), choices), stack.aclose)


async def _objects(chunks: Chunks, choices: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Any, None]:
    for one in chunks.first():
        yield one
    async with aclosing(merged(choices)) as pieces:
        async for piece in pieces:
            for one in chunks.of(piece):
                yield one
    for one in chunks.last():
        yield one


async def _all(jobs: Sequence[Job], state: State) -> list[list[Piece]]:
    """All pieces of all jobs. The first error cancels the others."""
    async with begun(jobs, state) as choices:
        tasks = [asyncio.ensure_future(_collected(choice)) for choice in choices]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _collected(choice: AsyncGenerator[Piece, None]) -> list[Piece]:
    return [piece async for piece in choice]
