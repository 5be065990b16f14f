"""Grammars, checked before anything runs: what a stage is given compiles, in little time and memory.

Knows: limits, the process that tries. Does not know: fields of requests, which token may follow.

A regular expression of a few characters can take an automaton of a million states, and nothing can stop the compiler
halfway. So whatever a client wrote is compiled in a process of its own first, under limits of the kernel's.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from draftline.graph.errors import ModelError, RequestError
from draftline.stages.grammar.automaton import compile_regex
from draftline.stages.grammar.forms import regex_of
from draftline.stages.grammar.tokens import read_tokens
from draftline.stages.models.core import Shape
from draftline.stages.sampling.params import Grammar

from .text import Text

CPU_SECONDS, MEMORY = 5, 2 << 30
"""What the compilation of one grammar may take."""
_PATIENCE = 60.0
_TRIAL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({cpu}, {cpu}))
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from draftline.graph.errors import RequestError
from draftline.stages.grammar.automaton import compile_regex
from draftline.stages.grammar.forms import regex_of
from draftline.stages.sampling.params import Grammar
try:
    compile_regex(regex_of(Grammar(sys.argv[1], sys.stdin.buffer.read().decode())))
except RequestError as error:
    sys.stdout.buffer.write(str(error).encode(errors="replace"))
"""


def check_grammar(grammar: Grammar, text: Text | None, shape: Shape, where: str) -> None:
    """Raises RequestError for a grammar that cannot be served, or a model that cannot serve any."""
    if text is None:
        raise RequestError(f"{where}: structured output needs a tokenizer, and this engine was given none")
    unfit = _unfit(text.directory, shape.vocab_size, shape.eos_token_ids)
    if unfit:
        raise RequestError(f"{where}: structured output cannot be had: {unfit}")
    wrong = fault(grammar)
    if wrong:
        raise RequestError(f"{where}: {grammar.kind}: {wrong}")


@functools.lru_cache(maxsize=8)
def _unfit(folder: Path, vocab_size: int, ends: tuple[int, ...]) -> str:
    """Why a model's tokens cannot be constrained; nothing if they can."""
    try:
        read_tokens(folder, vocab_size, ends)
    except ModelError as error:
        return str(error)
    return ""


@functools.lru_cache(maxsize=1024)
def fault(grammar: Grammar) -> str:
    """What is wrong with a grammar; nothing if it can be served."""
    try:
        if grammar.kind in ("choice", "json_object"):  # as large as they look
            compile_regex(regex_of(grammar))
            return ""
        spec = grammar.spec.encode()
    except RequestError as error:
        return str(error)
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    code = _TRIAL.format(cpu=CPU_SECONDS, memory=MEMORY)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, grammar.kind], input=spec, capture_output=True, env=env, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {_PATIENCE:g} s to compile"
    if done.returncode == 0:
        return done.stdout.decode()
    if done.returncode < 0 or b"MemoryError" in done.stderr or b"RecursionError" in done.stderr:
        return f"it takes more than {CPU_SECONDS} s or {MEMORY >> 30} GiB to compile; shorten its repetitions"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"it cannot be compiled: {' '.join(last) or done.returncode}"
