"""The flags that every command shares which opens a pipeline, and what they ask for.

Knows: names, ranges, the graph's own settings behind them. Does not know: prompts, HTTP.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from draftline.compiler.cache import default_directory
from draftline.graph.core import Graph
from draftline.graph.errors import UsageError, nearest
from draftline.graph.yaml import load_graph

from . import speculation
from .costing import STORED
from .pipeline import Prepared, prepare
from .settings import CAPTURES, KERNELS, LAYOUTS, RUNTIMES


class Parser(argparse.ArgumentParser):
    """Raises UsageError, with the nearest flag for one that is not known."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[^ =]+)", message)
        known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        raise UsageError(message + (nearest(unknown[1], known) if unknown else ""))


def add_flags(p: argparse.ArgumentParser) -> None:
    """Graph, model, speculation, sizes, runtime, workers, plan cache."""
    p.add_argument("--version", action="version", version=f"draftline {version('draftline')}")
    p.add_argument("--graph", default="mtp.yaml", metavar="G", help="a graph file, or the name of a packaged one")
    p.add_argument("--set", action="append", default=[], metavar="A.B=VALUE", help="override a value of the graph file")
    p.add_argument("--model", metavar="M", help="a model folder, or the name of a packaged one")
    p.add_argument("--mtp", metavar="DIR", help="the folder of an MTP head for the model, or a packaged head's name")
    p.add_argument("--draft-model", metavar="DIR", help="the folder or name of a model that drafts (draft-model.yaml)")
    p.add_argument(
        "--num-speculative-tokens", "-K", metavar="K", help="drafts per step; 0: plain; auto, auto:N: chosen"
    )
    config = '{"method": M, "num_speculative_tokens": K}, or with "model": DIR'
    p.add_argument("--speculative-config", metavar="JSON", help=config)
    p.add_argument("--enable-mtp", action=argparse.BooleanOptionalAction, default=None, help="deprecated: K=1")
    for flag, meaning in (
        ("--max-model-len", "context: prompt and new tokens"),
        ("--max-num-seqs", "requests decoded at once"),
        ("--max-num-batched-tokens", "prompt rows of a step at most; a longer prompt takes several steps"),
        ("--num-pages", "cache pages; 0: enough for all slots to be full"),
        ("--tile", "rows of a verify call"),
    ):
        p.add_argument(flag, metavar="N", help=meaning)
    p.add_argument(
        "--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=None, help="share rows of prompts"
    )
    p.add_argument(
        "--async-scheduling", action=argparse.BooleanOptionalAction, default=None, help="prepare a step while one runs"
    )
    p.add_argument("--dtype", choices=["fp32", "bf16"])
    p.add_argument(
        "--kernels", choices=list(KERNELS), help="native: C++, compiled at first use; reference: plain torch"
    )
    p.add_argument("--layouts", choices=list(LAYOUTS), help="which compete: every BxS, packed T alone, or any")
    p.add_argument("--capture", choices=list(CAPTURES), help="inductor: models compiled at start-up by torch.compile")
    p.add_argument("--runtime", choices=list(RUNTIMES), help="inline: this process; zmq: a process per device")
    p.add_argument("--threads", metavar="N", help="threads of each process that computes; 0: by the model's size")
    p.add_argument("--replicas", metavar="N", help="groups of workers, each with caches of its own")
    p.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=None, help="verify while drafting")
    p.add_argument("--stage-timeout", metavar="SECONDS", help="a stage that runs longer counts as hung")
    p.add_argument("--start-timeout", metavar="SECONDS", help="until all workers are ready")
    p.add_argument("--max-restarts", metavar="N", help="times in a row that dead workers are started anew")
    p.add_argument("--transport", default="ipc", metavar="T", help="ipc, or tcp://HOST with --curve-keys")
    p.add_argument("--curve-keys", type=Path, metavar="FILE", help="CURVE secret key file for tcp")
    p.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="warning")
    p.add_argument("--plan-cache", type=Path, metavar="DIR", help="where compiled plans are kept")
    p.add_argument("--no-plan-cache", action="store_true", help="compile afresh and keep nothing")
    p.add_argument("--costs", default=STORED, metavar="C", help="stored (default), assumed, or a file of --calibrate")


def prepared(
    args: argparse.Namespace,
    warn: Callable[[str], None],
    num_seqs: Callable[[Graph, int | None], int | None] | None = None,
    **more: Any,
) -> Prepared:
    """What the flags ask for, checked against the model. Where no flag says ``max_num_seqs``, ``num_seqs`` may, from
    the graph and the replicas asked for. ``more``: settings that win. Raises GraphError, UsageError, ModelError."""
    wish = speculation.resolve(args, warn)
    graph = load_graph(args.graph, args.set)
    if wish.stage is not None and all(f"{wish.stage}." not in f"{node.stage}." for node in graph.nodes):
        drafters = ", ".join(n.stage for n in graph.nodes if n.stage.startswith("draft.")) or "none"
        raise UsageError(
            f"--speculative-config: the method needs stage {wish.stage!r}, graph {graph.name!r} drafts with: {drafters}"
        )
    wishes: dict[str, Any] = {"num_speculative_tokens": wish.k, "draft_model": wish.draft_model}
    named = ("model", "mtp", "kernels", "layouts", "dtype", "capture", "runtime", "overlap")
    wishes |= {name: getattr(args, name) for name in named}
    wishes["async_scheduling"] = args.async_scheduling
    wishes["prefix_caching"] = args.enable_prefix_caching
    for name in ("max_restarts", "threads", "num_pages"):
        wishes[name] = integer("--" + name.replace("_", "-"), getattr(args, name), 0)
    for name in ("stage_timeout", "start_timeout"):
        wishes[name] = seconds("--" + name.replace("_", "-"), getattr(args, name))
    for name in ("max_new_tokens", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "tile", "replicas"):
        wishes[name] = integer("--" + name.replace("_", "-"), getattr(args, name, None))
    if wishes["max_num_seqs"] is None and num_seqs is not None:
        wishes["max_num_seqs"] = num_seqs(graph, wishes["replicas"])
    cache = None if args.no_plan_cache else args.plan_cache or default_directory()
    return prepare(graph, source=args.graph, plan_cache=cache, costs=args.costs, **{**wishes, **more})


def integer(flag: str, text: str | None, least: int = 1) -> int | None:
    """A flag's integer of ``least`` or more; None if it was not given. Raises UsageError."""
    return None if text is None else number(flag, text, least)


def number(flag: str, text: str, least: int) -> int:
    """An integer of ``least`` or more. Raises UsageError."""
    if not text.strip().isdigit() or int(text) < least:
        raise UsageError(f"{flag} is {text!r}; an integer of {least} or more is wanted")
    return int(text)


def seconds(flag: str, text: str | None) -> float | None:
    """A flag's seconds; None if it was not given. Raises UsageError."""
    try:
        return None if text is None else float(text)
    except ValueError:
        raise UsageError(f"{flag} is {text!r}; a number of seconds is wanted") from None


def say(message: str) -> None:
    """A line on stderr."""
    print(message, file=sys.stderr, flush=True)
