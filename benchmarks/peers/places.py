"""Where the race keeps what it makes: one work folder, outside the repository.

Knows: folder names. Does not know: what is in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftline.stages.models.places import cache_root

ENGINES = Path(__file__).parent / "engines"


@dataclass(frozen=True)
class Work:
    """The work folder: ``venvs/ENGINE``, ``build``, ``models/SHAPE``, ``logs``."""

    root: Path

    def venv(self, engine: str) -> Path:
        return self.root / "venvs" / engine

    def python(self, engine: str) -> Path:
        return self.venv(engine) / "bin" / "python"

    @property
    def llama_server(self) -> Path:
        return self.root / "build" / "llama" / "bin" / "llama-server"

    @property
    def llama_source(self) -> Path:
        return self.root / "build" / "llama.cpp"

    def model(self, name: str) -> Path:
        """The folder of a shape, or of the real model: ``target``, ``draft``, and their forms for peers beside."""
        return self.root / "models" / name

    def log(self, name: str) -> Path:
        (self.root / "logs").mkdir(parents=True, exist_ok=True)
        return self.root / "logs" / f"{name}.log"


def default_root() -> Path:
    """``$XDG_CACHE_HOME/draftline/peers``."""
    return cache_root() / "peers"
