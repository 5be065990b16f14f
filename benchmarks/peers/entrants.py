"""Who takes part in which heat. A heat is what runs interleaved: one K of one shape, or the real model at one batch.

Knows: engines' names, drafters, which options each script takes. Does not know: processes, order, time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftline.stages.models.places import resolve

from .forms import form
from .places import ENGINES, Work
from .shapes import SHAPES, copy_tokenizer, write
from .venvs import LLAMA

PEERS = ("openvino", "llamacpp", "vllm", "hf")
TARGET_ALONE, DRAFT_ALONE = "draftline-one-row", "draftline-draft-alone"
"""Beside ``draftline`` at K=0: the path with a tile of one row, and the draft decoded as if it were the target, which
gives the cost of a draft call."""
STATEFUL = "openvino-stateful"
"""OpenVINO's other pipeline, for one prompt and no drafts; the default one batches continuously."""
DEPTHS = (0, 1, 2, 4, 7, 8)
THREADS = 2


@dataclass(frozen=True)
class Heat:
    """``kind``: known or real. ``model``: a shape, or the real model's name. ``k`` is None where each entrant has its
    own (real, drafted)."""

    kind: str
    model: str
    k: int | None
    batch: int = 1

    @property
    def name(self) -> str:
        depth = "drafted" if self.k is None else f"k{self.k}"
        return f"{self.kind}-{self.model}-{depth}-b{self.batch}"


@dataclass(frozen=True)
class Entrant:
    """``name`` in the results; ``engine``: script and environment; ``options`` as ``engines/wire.py`` describes."""

    name: str
    engine: str
    drafter: str
    k: int
    options: Mapping[str, Any] = field(default_factory=dict)


def heats(kind: str, models: Sequence[str], depths: Sequence[int], batches: Sequence[int]) -> Iterator[Heat]:
    """All heats of a race."""
    for model in models:
        if kind == "known":
            yield from (Heat(kind, model, k) for k in depths)
        else:
            yield from (Heat(kind, model, k, batch) for batch in batches for k in (0, None))


def entrants(heat: Heat, engines: Sequence[str], mtp_k: int, ngram_k: int, compiled: bool = False) -> list[Entrant]:
    """Who takes part, draftline first. vLLM is eager unless ``compiled``, which starts minutes later."""
    peers = [e for e in engines if e != "draftline"]
    extra = {"vllm": {"eager": not compiled}}
    if heat.k == 0:
        ours = [Entrant("draftline", "draftline", "none", 0, {"tile": 8})]
        if heat.kind == "known":
            ours += [Entrant(n, "draftline", "none", 0, {"tile": 1}) for n in (TARGET_ALONE, DRAFT_ALONE)]
        found = ours + [Entrant(e, e, "none", 0, extra.get(e, {})) for e in peers]
        if heat.batch == 1:
            found.append(Entrant(STATEFUL, "openvino", "none", 0, {"backend": "SDPA"}))
    elif heat.kind == "known":
        assert heat.k is not None
        # A window of more than eight rows is one wave of a packed tile of sixteen, and two chunks of one of eight.
        layout = {"tile": 16, "layouts": "any"} if heat.k >= 8 else {"tile": 8}
        found = [Entrant("draftline", "draftline", "draft", heat.k, layout)]
        found += [Entrant(e, e, "draft", heat.k, extra.get(e, {})) for e in peers]
    else:
        found = [Entrant("draftline-mtp", "draftline", "mtp", mtp_k, {"tile": 8})]
        found += [Entrant("draftline-ngram", "draftline", "ngram", ngram_k, {"tile": 8})]
        # transformers refuses prompt lookup for more than one prompt at a time.
        found += [
            Entrant(f"{e}-ngram", e, "ngram", ngram_k, extra.get(e, {})) for e in peers if e != "hf" or heat.batch == 1
        ]
    return [e for e in found if e.engine in engines]


def checkpoints(work: Work, model: str) -> tuple[Path, Path | None]:
    """Target and draft in Hugging Face's format; random ones are written at first use."""
    if model in SHAPES:
        return write(SHAPES[model], work.model(model), resolve("smollm2"))
    at, source = work.model(model) / "target", resolve(model)
    at.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(source, at)
    for file in ("config.json", "model.safetensors"):
        if not (at / file).exists():
            (at / file).symlink_to(source / file)
    return at, None


def launch(work: Work, heat: Heat, entrant: Entrant) -> tuple[list[str | Path], dict[str, Any]]:
    """The command and the options of an entrant's process; converts the checkpoints where that is not done."""
    target, draft = checkpoints(work, heat.model)
    if entrant.name == DRAFT_ALONE:
        assert draft is not None
        target = draft
    ours = entrant.engine == "draftline"
    python = Path(sys.executable) if ours else work.python(entrant.engine)
    if not python.exists():
        raise FileNotFoundError(f"no environment for {entrant.engine}: python -m benchmarks.peers.venvs")
    options: dict[str, Any] = {"k": entrant.k, "drafter": entrant.drafter, "threads": THREADS, "batch": heat.batch}
    if ours and heat.kind == "real":
        options["model"] = heat.model  # by name, which the packaged MTP head goes by
    else:
        options["model"] = str(form(work, entrant.engine, target, heat.model, "target"))
    if entrant.drafter == "draft":
        assert draft is not None
        options["draft"] = str(form(work, entrant.engine, draft, heat.model, "draft"))
    if entrant.engine == "llamacpp":
        options |= {"server": str(work.llama_server), "release": LLAMA}
    return [python, ENGINES / f"{entrant.engine}.py"], options | dict(entrant.options)
