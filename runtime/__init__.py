"""Runs plans: arena, executor, engine, command line.

Importing this package sets OMP_WAIT_POLICY=PASSIVE unless it is set: OpenMP reads it once, when torch is loaded.
Threads that wait at a barrier must sleep, not spin: two processes that spin on the same cores stall each other for
milliseconds at every operation (measured on two cores: 9 against 77 tokens/s beside another torch process).
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
