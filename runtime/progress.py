"""What is shown while a run goes on: a progress bar, or the text as it comes.

Knows: stdout, stderr, order of prompts. Does not know: the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from .request import Delta
from .text import Text


class Progress:
    """``stream``: prompts in order on stdout, each once the one before it is done. Otherwise a bar of tokens on
    stderr, where stderr is a terminal."""

    def __init__(self, text: Text, prompts: Sequence[str], *, stream: bool, quiet: bool) -> None:
        self._prompts, self._stream = prompts, stream
        self._decoders = [text.stream() for _ in prompts]
        self._held = list(prompts)  # text that must wait for earlier prompts
        self._current = 0
        self._bar: Bar | None = None
        if not stream and not quiet and sys.stderr.isatty():
            columns = (
                TextColumn("decoding"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("tokens"),
                TimeElapsedColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("tokens", total=None)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._stream and kind is None:
            rest = zip(self._held[self._current :], self._decoders[self._current :], strict=True)
            for text, decoder in rest:
                print(text + decoder.flush(), flush=True)

    def listen(self, delta: Delta) -> None:
        """The engine's listener."""
        index, tokens = delta.index, delta.token_ids
        if self._bar is not None:
            self._bar.advance(self._task, len(tokens))
        if self._stream:
            self._held[index] += self._decoders[index].feed(tokens)
            if index == self._current:
                print(self._held[index], end="", flush=True)
                self._held[index] = ""
