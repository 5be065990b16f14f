"""What the race's driver and an engine's script say to each other: one JSON object a line, on stdin and stdout.

Knows: the messages, and that time is taken around a whole call. Does not know: engines. Standard library only, since
it is imported inside every peer's environment.

Start:   ``python ENGINE.py '{"model": DIR, "draft": DIR, "k": 4, "drafter": "draft", "threads": 2, "batch": 1, …}'``
Ready:   ``{"ready": true, "versions": {"openvino-genai": "…"}}``
Ask:     ``{"prompts": [[id, …], …], "new_tokens": 64}``
Answer:  ``{"tokens": [[id, …], …], "seconds": s, "length": tokens per target step or null}``
         or ``{"error": "…"}``
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata

Answer = tuple[list[list[int]], float | None]
Generate = Callable[[list[list[int]], int], Answer]


def versions(*packages: str) -> dict[str, str]:
    """Installed versions of the packages."""
    return {name: metadata.version(name) for name in packages}


def serve(load: Callable[[dict], tuple[Generate, dict[str, str]]]) -> None:
    """Answer until stdin ends. ``load`` takes the options and gives the function that decodes, greedily and past any
    end-of-sequence token, exactly ``new_tokens`` tokens for each prompt, and the versions of what it uses."""
    # Libraries print to stdout as they like; the real one is kept for the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        generate, found = load(json.loads(sys.argv[1]))
        say({"ready": True, "versions": found})
        for line in sys.stdin:
            ask = json.loads(line)
            start = time.perf_counter()
            tokens, length = generate(ask["prompts"], ask["new_tokens"])
            say({"tokens": tokens, "seconds": time.perf_counter() - start, "length": length})
    except Exception as error:  # the driver reports it; the traceback goes to the engine's log
        traceback.print_exc()
        say({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
