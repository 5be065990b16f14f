"""A worker's first lines: ``python -m draftline.runtime.workers.main BOOT_FD DEATH_FD PARENT_PID RUN_DIRECTORY``.

Knows: the order of starting. It is guarded before it imports anything that takes time.
"""

from __future__ import annotations

import os
import sys

from . import guard


def main(argv: list[str]) -> int:
    """Run a worker to its end; the exit code."""
    boot_fd, death_fd, parent, directory = int(argv[0]), int(argv[1]), int(argv[2]), argv[3]
    for fd in (boot_fd, death_fd):
        os.set_inheritable(fd, False)
    guard.arm(parent, death_fd, directory)
    from . import boot as boots

    boot, luggage = boots.receive(boot_fd)
    sys.path[:] = boot.path
    from . import cores

    cores.own(boot.cores, boot.threads)
    from draftline.graph.errors import DraftlineError

    from .loop import Worker

    try:
        worker = Worker(boot, luggage)
    except DraftlineError as error:  # meant to be read, and its traceback is not
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return worker.serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
