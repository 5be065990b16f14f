"""An engine of the race without a model: counts up from the prompt's last token, writes down when it was asked.

Options: ``pace`` (seconds a token), ``log`` (file), and ``fault``: start, later, die, silent, hungry.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "peers" / "engines"))
from wire import serve


def load(options):
    fault, asked = options.get("fault"), []
    if fault == "start":
        raise ValueError("no such model")
    hoard = bytearray(400 * 2**20) if fault == "hungry" else b""
    print("a library that prints to stdout")

    def generate(prompts, new_tokens):
        asked.append(new_tokens)
        if len(asked) > 2 and fault == "later":
            raise RuntimeError("out of luck")
        if len(asked) > 2 and fault == "die":
            os._exit(7)
        if len(asked) > 2 and fault == "silent":
            time.sleep(60)
        with open(options["log"], "a") as log:
            log.write(json.dumps([options["name"], new_tokens]) + "\n")
        time.sleep(options["pace"] * new_tokens + len(hoard) / 1e12)
        return [[p[-1] + 1 + i for i in range(new_tokens)] for p in prompts], 2.0

    return generate, {"fake": "1"}


serve(load)
