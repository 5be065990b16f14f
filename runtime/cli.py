"""``pipeline-run``: a graph, a model and prompts in; text, JSON lines or a plan out.

Knows: flags and exit codes (0 done, 1 a request or the workers failed, 2 bad input, 130 interrupted, 143 terminated).
Does not know: how anything is computed.
Text and JSON go to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from draftline.compiler.compile import PASSES
from draftline.compiler.explain import dumper, explain
from draftline.compiler.pictures import emit
from draftline.graph import pictures
from draftline.graph.core import Graph
from draftline.graph.errors import DraftlineError, RequestError, UsageError, WorkerError, WorkerLostError, nearest
from draftline.graph.yaml import json_schema, load_graph

from . import prompts, sampling_flags
from .costing import STORED
from .deployment import needs_mtp, uses_drafts
from .flags import Parser, add_flags, number, prepared, say
from .pipeline import Pipeline, Prepared, RunOptions, calibrated
from .progress import Progress
from .report import costs_table, json_line, summary
from .request import Output, Request
from .settings import AUTO

PROG = "pipeline-run"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(prog=PROG, description="Decode text with a declared, compiled decode graph.", allow_abbrev=False)
    add_flags(p)
    p.add_argument("--prompt", action="append", default=[], metavar="P", help="a prompt; may be repeated")
    p.add_argument("--prompt-file", type=Path, metavar="F.jsonl", help='one {"prompt": "…"} per line')
    p.add_argument("--max-new-tokens", metavar="N", help="most tokens per prompt")
    sampling_flags.add_flags(p)
    p.add_argument("--trace", type=Path, metavar="OUT.json", help="write a trace for Perfetto or chrome://tracing")
    p.add_argument("--metrics-port", metavar="PORT", help="serve Prometheus metrics on 127.0.0.1")
    p.add_argument("--ignore-eos", action="store_true", help="go on after an end-of-sequence token")
    p.add_argument("--stream", action="store_true", help="print text as it comes")
    p.add_argument("--json", action="store_true", help="one JSON object per prompt on stdout, nothing else")
    p.add_argument("--explain", action="store_true", help="print the plan for K")
    p.add_argument("--dump-ir", nargs="?", const="", metavar="PASS", help="print the IR after every pass, or after one")
    p.add_argument("--emit", choices=["mermaid", "dot", "json"], help="print the plan for tools and exit")
    p.add_argument("--picture", choices=["text", "mermaid", "dot"], help="print the graph and exit")
    p.add_argument("--schema", action="store_true", help="print the JSON Schema of graph files and exit")
    p.add_argument("--calibrate", action="store_true", help="measure what stages, hops and steps cost here; store it")
    return p


class _Terminated(BaseException):
    """SIGTERM: as an interrupt, so that workers end, sockets go and the trace is written."""


def _terminate(*_: object) -> NoReturn:
    raise _Terminated


def _on_sigterm(handler: Any) -> Any:
    """Set the handler and give back the one before, where this thread may."""
    return signal.signal(signal.SIGTERM, handler) if threading.current_thread() is threading.main_thread() else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    before = _on_sigterm(_terminate)
    try:
        args = parser().parse_args(argv)
        logging.basicConfig(level=args.log_level.upper(), format="%(levelname)s %(name)s: %(message)s", force=True)
        return run(args)
    except DraftlineError as error:
        say(f"{PROG}: error: {error}")
        return 1 if isinstance(error, WorkerError) else 2
    except KeyboardInterrupt:
        say(f"{PROG}: interrupted")
        return 130
    except _Terminated:
        say(f"{PROG}: terminated")
        return 143
    except BrokenPipeError:
        # The reader went away; what is left must not raise again when the interpreter flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    finally:
        if before is not None:
            _on_sigterm(before)


def run(args: argparse.Namespace) -> int:
    """The command after parsing. Raises DraftlineError."""
    if args.schema:
        print(json.dumps(json_schema(), indent=2))
        return 0
    if args.json and args.stream:
        raise UsageError("--json prints whole objects and --stream prints parts; give one of them")
    sampling_flags.from_flags(args)  # before anything is loaded
    if args.no_plan_cache and args.plan_cache is not None:
        raise UsageError("--plan-cache names a cache and --no-plan-cache wants none; give one of them")
    sys.path.insert(0, os.getcwd())  # stages named package.module:Class may lie beside the graph
    if args.picture:
        graph = load_graph(args.graph, args.set)
        print({"text": pictures.text, "mermaid": pictures.mermaid, "dot": pictures.dot}[args.picture](graph))
        return 0
    wanted = prompts.from_flags(args.prompt) + (prompts.from_file(args.prompt_file) if args.prompt_file else [])
    if args.calibrate:
        _calibrate(args, len(wanted))
        if not wanted and not args.explain and not args.emit:
            return 0
    ready = _prepare(args, len(wanted))
    shown = _show_plan(args, ready)
    if not wanted:
        if shown:
            return 0
        raise RequestError("no prompt; give --prompt TEXT or --prompt-file F.jsonl")
    if args.emit:
        return 0
    return _generate(args, ready, wanted)


def _calibrate(args: argparse.Namespace, num_prompts: int) -> None:
    """Measure for the batch that was asked for; where none was, for one request and for the graph's own number."""
    if args.costs != STORED:
        raise UsageError(f"--calibrate measures costs and --costs {args.costs} brings some; give one of them")
    wishes = _prepare(args, num_prompts)
    graph_drafts = uses_drafts(wishes.graph) and (wishes.shape.num_mtp_layers or not needs_mtp(wishes.graph))
    depth = max(wishes.sizes.num_speculative_tokens, AUTO) if graph_drafts else 0
    counts = {wishes.sizes.max_num_seqs} | (set() if num_prompts or args.max_num_seqs else {1})
    to = sys.stderr if args.json else sys.stdout
    for requests in sorted(counts):
        done = calibrated(_prepare(args, num_prompts, num_speculative_tokens=depth, max_num_seqs=requests))
        assert done.costs.record is not None
        print(costs_table(done.costs.record), file=to, flush=True)
        say(f"{PROG}: stored in {done.costs.path}")


def _prepare(args: argparse.Namespace, num_prompts: int, **more: Any) -> Prepared:
    def num_seqs(graph: Graph, replicas: int | None) -> int | None:
        """No more slots than there are prompts."""
        settings = dict(graph.settings)
        each = math.ceil(num_prompts / (replicas or settings.get("replicas", 1)))
        return min(each, settings.get("max_num_seqs", 8)) if num_prompts else None

    return prepared(args, lambda message: say(f"{PROG}: warning: {message}"), num_seqs, **more)


def _show_plan(args: argparse.Namespace, prepared: Prepared) -> bool:
    """Print what --dump-ir, --explain and --emit ask for; whether anything was asked."""
    to = sys.stderr if args.json else sys.stdout
    if args.dump_ir is not None:
        if args.dump_ir and args.dump_ir not in PASSES:
            raise UsageError(f"--dump-ir: unknown pass {args.dump_ir!r}{nearest(args.dump_ir, PASSES)}")
        prepared.plan(dumper(lambda text: print(text, file=to), args.dump_ir))
    if args.explain or args.emit:
        plan, report = prepared.plan()
        if report is not None:
            say(f"{PROG}: {report}")
        print(emit(plan, args.emit) if args.emit else explain(plan), file=to)
    return args.explain or args.emit is not None or args.dump_ir is not None


def _generate(args: argparse.Namespace, prepared: Prepared, wanted: Sequence[prompts.Prompt]) -> int:
    port = None if args.metrics_port is None else number("--metrics-port", args.metrics_port, 0)
    options = RunOptions(args.trace, port, args.transport, args.curve_keys)
    with Pipeline(prepared, options) as pipeline:
        if pipeline.observers.metrics is not None:
            say(f"{PROG}: metrics on http://127.0.0.1:{pipeline.observers.metrics.port}/metrics")
        return _decode(args, pipeline, wanted)


def _decode(args: argparse.Namespace, pipeline: Pipeline, wanted: Sequence[prompts.Prompt]) -> int:
    flags = sampling_flags.from_flags(args)
    requests = [
        pipeline.request(
            p.text,
            p.max_new_tokens,
            num_speculative_tokens=p.num_speculative_tokens,
            ignore_eos=args.ignore_eos,
            sampling=sampling_flags.params(flags, p.sampling),
        )
        for p in wanted
    ]
    began = time.perf_counter()
    with Progress(pipeline.text, [p.text for p in wanted], stream=args.stream, quiet=args.json) as progress:
        outputs, lost = _run(pipeline, requests, progress)
    for prompt, output in zip(wanted, outputs, strict=True):
        text = pipeline.text.decode(output.token_ids)
        if args.json:
            print(json_line(prompt.text, text, output), flush=True)
        elif not args.stream:
            print(prompt.text + text, flush=True)
    if not args.json:
        if not args.explain and pipeline.engine.cache_report is not None:
            say(f"{PROG}: {pipeline.engine.cache_report}")
        runtimes = [engine.runtime for engine in pipeline.engines]
        waves, captures = sum(r.totals.waves for r in runtimes), sum(r.captures for r in runtimes)
        summary(outputs, time.perf_counter() - began, waves, captures, sys.stderr)
    failed = [(prompt, output) for prompt, output in zip(wanted, outputs, strict=True) if output.error is not None]
    for prompt, output in failed:
        if lost is None or output.error != str(lost):
            say(f"{PROG}: error: {prompt.where}: {output.error}")
    if lost is not None:
        raise lost
    return 1 if failed else 0


def _run(
    pipeline: Pipeline, requests: Sequence[Request], progress: Progress
) -> tuple[Sequence[Output], WorkerLostError | None]:
    """An output for every request, also where the workers were lost for good on the way."""
    try:
        return pipeline.run(requests, progress.listen), None
    except WorkerLostError as error:
        return error.outputs, error


if __name__ == "__main__":
    sys.exit(main())
