"""What the server is and in which phase: shared by all requests, changed by the life cycle alone.

Knows: options, the phase, who is being served. Does not know: routes, tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from draftline.graph.errors import WorkerLostError

from ..asynchronous import AsyncEngine
from ..chat import ChatTemplate
from ..pipeline import Pipeline
from .board import Board
from .errors import RETRY, HttpError, unavailable
from .metrics import ServeMetrics
from .spelling import Spelling

Phase = Literal["starting", "ready", "draining"]


@dataclass(frozen=True)
class Options:
    """What the flags say of HTTP. ``names``: of the model, the first is the one in answers. ``api_keys``: any of them
    opens the API; none: it is open. ``max_body`` in bytes; the timeouts in seconds: ``drain`` for running requests once
    the server is told to end, ``send`` for a client that does not read, ``receive`` for one that does not send."""

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    max_body: int = 4 * 2**20
    drain: float = 30.0
    send: float = 60.0
    receive: float = 30.0
    chat_template: Path | None = None
    access_log: bool = False
    log_level: str = "warning"


@dataclass(frozen=True)
class Serving:
    """The opened model."""

    pipeline: Pipeline
    engine: AsyncEngine
    template: ChatTemplate | None
    names: tuple[str, ...]
    spelling: Spelling

    @property
    def max_len(self) -> int:
        """Tokens of prompt and answer together."""
        return self.pipeline.prepared.sizes.max_model_len

    @property
    def vocab_size(self) -> int:
        return self.pipeline.prepared.shape.vocab_size


@dataclass
class State:
    """``serving`` is None while the model loads. ``active``: HTTP requests that are being answered by an engine."""

    options: Options
    metrics: ServeMetrics
    board: Board
    phase: Phase = "starting"
    serving: Serving | None = None
    active: int = 0
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def lost(self) -> WorkerLostError | None:
        """Why no request can be served any more, if so."""
        return None if self.serving is None else self.serving.engine.lost

    def ready(self) -> Serving:
        """The model, if requests are taken. Raises HttpError 503 with the reason."""
        if self.phase == "draining":
            raise unavailable("the server is shutting down; try another one", "shutting_down", RETRY)
        if self.phase == "starting" or self.serving is None:
            raise unavailable("the model is loading; try again later", "starting", RETRY)
        if self.lost is not None:
            raise unavailable(f"the workers are down for good: {self.lost}", "workers_lost")
        return self.serving

    def check_model(self, name: str | None) -> str:
        """The name of the model that is asked for. Raises HttpError 404 for one that is not served."""
        names = self.ready().names
        if name is None or name in names:
            return name or names[0]
        known = ", ".join(names)
        message = f"model: {ascii(name)[:200]} is not served here; known: {known}"
        raise HttpError(404, message, param="model", code="model_not_found")
