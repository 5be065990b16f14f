"""``pipeline-serve``: a graph and a model in, OpenAI's HTTP interface out.

Knows: flags and exit codes (0 drained, 1 the workers could not be started or the server failed, 2 bad input, 130 and
143 ended at once by a signal). Does not know: routes.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from draftline.graph.errors import DraftlineError, UsageError, WorkerError

from ..asynchronous import AsyncEngine
from ..chat import ChatTemplate
from ..flags import Parser, add_flags, number, prepared, say, seconds
from ..pipeline import Pipeline, RunOptions
from .app import build
from .board import Board, BoardObserver
from .life import Ended, Signals, Web
from .listen import bind, url
from .metrics import ServeMetrics
from .spelling import Spelling
from .state import Options, Serving, State

PROG = "pipeline-serve"
KEY = "DRAFTLINE_API_KEY"
SWITCH = 0.0005
"""Seconds after which the engines' thread lets the HTTP thread run; Python's own 5 ms would be added at every turn."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(prog=PROG, description="Serve a model over OpenAI's HTTP interface.", allow_abbrev=False)
    p.add_argument("--host", default="127.0.0.1", metavar="H", help="where to listen (127.0.0.1: this machine alone)")
    p.add_argument("--port", default="8000", metavar="PORT", help="0: any free one, which the first line names")
    p.add_argument("--served-model-name", nargs="+", metavar="NAME", help="the model's names for clients; the first")
    p.add_argument("--api-key", action="append", default=[], metavar="KEY", help=f"clients must send one; or {KEY}")
    p.add_argument("--chat-template", type=Path, metavar="FILE", help="a jinja template instead of the model's own")
    p.add_argument("--max-waiting", metavar="N", help="requests that may wait for a slot; more are refused with 429")
    p.add_argument("--max-body", default=str(4 * 2**20), metavar="BYTES", help="of a request; larger: 413")
    p.add_argument("--drain-timeout", default="30", metavar="SECONDS", help="for running requests after SIGTERM")
    p.add_argument("--send-timeout", default="60", metavar="SECONDS", help="a client that does not read is cut off")
    p.add_argument("--receive-timeout", default="30", metavar="SECONDS", help="for the head and the body of a request")
    p.add_argument("--access-log", action="store_true", help="a line per request on stderr")
    add_flags(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    try:
        args = parser().parse_args(argv)
        level = args.log_level.upper()
        logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", force=True)
        logging.getLogger("uvicorn.access").setLevel("INFO")
        return serve(args)
    except DraftlineError as error:
        say(f"{PROG}: error: {error}")
        return 1 if isinstance(error, WorkerError) else 2
    except Ended as ended:
        say(f"{PROG}: ended at once")
        return 128 + ended.number
    except KeyboardInterrupt:
        return 130


def options_of(args: argparse.Namespace) -> Options:
    """Raises UsageError."""
    port = number("--port", args.port, 0)
    if port > 65535:
        raise UsageError(f"--port is {port}; 0 to 65535 is wanted")
    keys = args.api_key or [key for key in [os.environ.get(KEY)] if key]
    if not all(keys):
        raise UsageError("--api-key is empty")
    return Options(
        host=args.host,
        port=port,
        names=tuple(args.served_model_name or ()),
        api_keys=tuple(keys),
        max_body=number("--max-body", args.max_body, 1),
        chat_template=args.chat_template,
        access_log=args.access_log,
        drain=_seconds("--drain-timeout", args.drain_timeout, least=0.0),
        send=_seconds("--send-timeout", args.send_timeout),
        receive=_seconds("--receive-timeout", args.receive_timeout),
    )


def _seconds(flag: str, text: str, least: float = 0.01) -> float:
    value = seconds(flag, text)
    if value is None or not least <= value < 1e6:
        raise UsageError(f"{flag} is {text!r}; a number of seconds of {least:g} or more is wanted")
    return value


def serve(args: argparse.Namespace) -> int:
    """The command after parsing. Raises DraftlineError."""
    options = options_of(args)
    sys.path.insert(0, os.getcwd())  # stages named package.module:Class may lie beside the graph
    more: dict[str, Any] = (
        {} if args.max_waiting is None else {"max_waiting": number("--max-waiting", args.max_waiting, 0)}
    )
    ready = prepared(args, lambda message: say(f"{PROG}: warning: {message}"), **more)
    names = options.names or (ready.settings.model,)
    template = ChatTemplate.of(ready.files.folder, options.chat_template)
    registry = CollectorRegistry()
    state = State(options, ServeMetrics(registry, names[0]), Board(registry, names[0]))
    sys.setswitchinterval(SWITCH)
    with ExitStack() as stack:
        signals = stack.enter_context(Signals(state, lambda message: say(f"{PROG}: {message}")))
        listener = bind(options.host, options.port)
        web = stack.enter_context(Web(build(state), listener, options))
        signals.hurry = web.hurry
        say(f"{PROG}: loading {ready.settings.model}; listening on {url(listener)}")
        run = RunOptions(
            transport=args.transport,
            curve_keys=args.curve_keys,
            registry=registry,
            observe=lambda group: BoardObserver(group, state.board),
        )
        pipeline = stack.enter_context(Pipeline(ready, run))
        engine = AsyncEngine(pipeline)
        state.metrics.engines = lambda: pipeline.engines
        state.serving = Serving(pipeline, engine, template, names, Spelling(pipeline.text))
        state.phase = "ready"
        say(f"{PROG}: ready on {url(listener)}")
        signals.run(engine)
    say(f"{PROG}: drained")
    return 0


if __name__ == "__main__":
    sys.exit(main())
