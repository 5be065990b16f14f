"""Three prompts, decoded greedily. Helper for tests; no tests in here."""

from __future__ import annotations

import itertools
import os
import signal

from draftline.runtime.pipeline import Pipeline
from draftline.runtime.request import Delta, Listener

PROMPTS = ["def read_lines(path):", "class Stack:", "import os\n"]
NEW = 24


def decode(pipeline: Pipeline, listen: Listener | None = None, new: int = NEW) -> list[tuple[int, ...]]:
    """The tokens of each prompt."""
    return [o.token_ids for o in pipeline.generate(PROMPTS, listen, max_new_tokens=new, ignore_eos=True)]


def killing(pipeline: Pipeline, worker: int, after: int) -> Listener:
    """A listener that kills a worker once requests have heard of ``after`` steps."""
    heard = itertools.count(1)

    def listen(delta: Delta) -> None:
        if next(heard) == after:
            os.kill(pipeline.engine.runtime.pids[worker], signal.SIGKILL)

    return listen
