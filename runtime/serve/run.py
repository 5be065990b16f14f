"""Jobs through the engine: begun together, told apart as pieces, cancelled together.

Knows: the engine's streams. Does not know: HTTP, how answers look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from draftline.graph.errors import DraftlineError

from ..asynchronous import AsyncEngine, Stream
from ..request import Delta, Request
from . import errors
from .jobs import Job
from .metrics import Clock
from .pieces import Joiner, Piece
from .state import State


@asynccontextmanager
async def begun(jobs: Sequence[Job], state: State) -> AsyncIterator[list[AsyncGenerator[Piece, None]]]:
    """All jobs, taken by the engine; whatever has not ended on the way out is cancelled. Raises HttpError before
    anything was generated if the engine does not take all of them."""
    serving = state.ready()
    async with AsyncExitStack() as stack:
        state.active += 1
        stack.callback(_leave, state)
        out = []
        wanted = [job for job in jobs if job.request.max_new_tokens]
        out += [_nothing(job) for job in jobs if not job.request.max_new_tokens]
        try:
            streams = await _begun([job.request for job in wanted], serving.engine)
        except DraftlineError as error:
            raise _told(error, state) from None
        for job, stream in zip(wanted, streams, strict=True):
            stack.push_async_callback(stream.aclose)
            clock = state.metrics.clock(len(job.request.prompt), job.request.max_new_tokens)
            stack.callback(clock.left)
            out.append(_pieces(Joiner(job, serving.pipeline.text), stream, clock, state))
            stack.push_async_callback(out[-1].aclose)
        yield out


async def _begun(requests: Sequence[Request], engine: AsyncEngine) -> list[Stream]:
    """All at once, for each waits until the engine has time. Raises the first error, and then keeps none."""
    tasks = [asyncio.create_task(engine.begin(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for got in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(got, Stream):
                await got.aclose()
        raise


async def _nothing(job: Job) -> AsyncGenerator[Piece, None]:
    """Of a job that wants its prompt back alone."""
    yield Piece(job.index, "", 0, (), "length")


def _leave(state: State) -> None:
    state.active -= 1


def _told(error: DraftlineError, state: State) -> errors.HttpError:
    """As HTTP says it; a request that the server's end has cut off is told so, not that too many wait."""
    if state.phase == "draining":
        return errors.unavailable("the server is shutting down; try another one", "shutting_down", errors.RETRY)
    return errors.of(error)


async def _pieces(joiner: Joiner, stream: Stream, clock: Clock, state: State) -> AsyncGenerator[Piece, None]:
    """A job's pieces, the last with ``finish``. Raises HttpError."""
    try:
        async for event in stream:
            if isinstance(event, Delta):
                clock.came(len(event.token_ids))
                piece = joiner.feed(event.token_ids, event.logprobs)
            elif event.finish_reason == "error":
                clock.ended("error")
                if state.lost is not None:
                    raise errors.of(state.lost)
                raise errors.failed(event.error)
            else:
                piece = joiner.finish(event)
            if piece.finish is not None:
                clock.ended(piece.finish)
                yield piece
                return
            yield piece
    except DraftlineError as error:
        clock.ended("abort" if state.phase == "draining" else "error")
        raise _told(error, state) from None


async def merged(choices: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """The pieces of all choices as they come. Raises the first error of any."""
    queue: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue(1)

    async def pump(choice: AsyncGenerator[Piece, None]) -> None:
        try:
            async for piece in choice:
                await queue.put(piece)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(choice)) for choice in choices]
    try:
        left = len(tasks)
        while left:
            got = await queue.get()
            if isinstance(got, BaseException):
                raise got
            if got is None:
                left -= 1
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
