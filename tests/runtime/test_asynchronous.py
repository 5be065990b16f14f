"""Engines for asyncio: what a closed stream costs, and that nobody waits for an engine that has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from draftline.graph.errors import CapacityError, RequestError
from draftline.runtime.asynchronous import AsyncEngine
from draftline.runtime.pipeline import Pipeline, open_pipeline
from draftline.runtime.request import Delta, Output

PROMPT = "def read_lines(path):"


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    with open_pipeline("mtp.yaml", max_num_seqs=2, max_waiting=1) as one:
        yield one


def serve(engine: AsyncEngine, client: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``client`` on a loop in another thread while the engine runs in this one."""
    results: list[Any] = []

    async def whole() -> None:
        try:
            results.append(await client())
        except BaseException as error:
            results.append(error)
        finally:
            engine.stop()

    thread = threading.Thread(target=lambda: asyncio.run(whole()))
    thread.start()
    engine.run()
    thread.join(30)
    assert not thread.is_alive()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def test_deltas_then_the_output(pipeline):
    engine, request = AsyncEngine(pipeline), pipeline.request(PROMPT, 20)

    async def client() -> list[Delta | Output]:
        return [event async for event in engine.generate(request)]

    *deltas, output = serve(engine, client)
    assert isinstance(output, Output)
    assert sum((d.token_ids for d in deltas), ()) == output.token_ids == pipeline.run([request])[0].token_ids


def test_a_closed_stream_frees_its_slot_before_the_next_step(pipeline):
    engine, steps = AsyncEngine(pipeline), []

    async def client() -> None:
        other = asyncio.create_task(engine.complete(pipeline.request(PROMPT, 60, ignore_eos=True)))
        stream = await engine.begin(pipeline.request(PROMPT, 1000, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        before = pipeline.engine.runtime.step
        while len(pipeline.engine.scheduler.live) > 1:
            steps.append(pipeline.engine.runtime.step - before)
            await asyncio.sleep(0)
        assert len((await other).token_ids) == 60
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    serve(engine, client)
    assert max(steps, default=0) <= 2  # the step that was under way, and the one whose number is counted already


def test_refusals_come_before_anything_is_generated(pipeline):
    engine = AsyncEngine(pipeline)

    async def client() -> None:
        with pytest.raises(RequestError, match="empty"):
            await engine.begin(pipeline.request([], 5))
        streams = [await engine.begin(pipeline.request(PROMPT, 900, ignore_eos=True)) for _ in range(2)]
        await anext(streams[0])
        streams.append(await engine.begin(pipeline.request(PROMPT, 900)))
        with pytest.raises(CapacityError, match="try again"):
            await engine.begin(pipeline.request(PROMPT, 5))
        for stream in streams:
            await stream.aclose()
        assert len((await engine.complete(pipeline.request(PROMPT, 5))).token_ids) == 5

    serve(engine, client)


def test_an_engine_that_ends_tells_all_and_takes_nobody(pipeline):
    engine = AsyncEngine(pipeline)

    async def client() -> None:
        stream = await engine.begin(pipeline.request(PROMPT, 1000, ignore_eos=True))
        await anext(stream)
        engine.stop()
        with pytest.raises(CapacityError, match="shutting down"):
            async for _ in stream:
                pass
        with pytest.raises(CapacityError, match="shutting down"):
            await engine.begin(pipeline.request(PROMPT, 5))

    serve(engine, client)
    assert pipeline.engine.num_unfinished == 0


def test_a_fault_in_the_loop_reaches_who_waits(pipeline, monkeypatch):
    engine = AsyncEngine(pipeline)
    told = []

    async def client() -> None:
        try:
            await engine.complete(pipeline.request(PROMPT, 1000))
        except CapacityError as error:
            told.append(str(error))

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pipeline.engine, "flow", broken)
    with pytest.raises(ZeroDivisionError):
        serve(engine, client)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(10)
    assert told == ["the server is shutting down; try another one"]
