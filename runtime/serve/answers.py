"""How answers look: OpenAI's objects from pieces.

Knows: the fields of completions and chat completions, whole and streamed. Does not know: engines, sockets.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftline.stages.sampling.params import TokenLogprobs

from .jobs import Job
from .pieces import Piece
from .spelling import Spelling


@dataclass(frozen=True)
class Form:
    """What an answer's objects share. ``chat``: which of the two. ``n``: choices per prompt. ``usage``,
    ``continuous``: as in ``stream_options``."""

    chat: bool
    model: str
    jobs: Sequence[Job]
    spelling: Spelling
    n: int = 1
    usage: bool = False
    continuous: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    unique: str = field(default_factory=lambda: uuid.uuid4().hex)

    def head(self, streamed: bool) -> dict[str, Any]:
        """The fields that do not change."""
        name = "chat.completion" if self.chat else "text_completion"
        return {
            "id": ("chatcmpl-" if self.chat else "cmpl-") + self.unique,
            "object": name + ".chunk" * (streamed and self.chat),
            "created": self.created,
            "model": self.model,
        }


def usage(form: Form, tokens: Iterable[int]) -> dict[str, int]:
    """Prompts count once, whatever ``n`` is."""
    prompt, made = sum(len(job.request.prompt) for job in form.jobs[:: form.n]), sum(tokens)
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def whole(form: Form, pieces: Sequence[Sequence[Piece]]) -> dict[str, Any]:
    """The answer in one object; ``pieces`` per job."""
    choices = []
    for job, parts in zip(form.jobs, pieces, strict=True):
        text, last = job.shown + "".join(p.text for p in parts), parts[-1]
        choice: dict[str, Any] = {"index": job.index}
        choice |= {"message": {"role": "assistant", "content": text}} if form.chat else {"text": text}
        logprobs = [entry for p in parts for entry in p.logprobs]
        choice["logprobs"] = None if job.top is None else _logprobs(form, job, logprobs, 0)
        choices.append({**choice, "finish_reason": last.finish, "stop_reason": last.stop})
    told = usage(form, (parts[-1].tokens for parts in pieces))
    return {**form.head(False), "choices": choices, "usage": told}


class Chunks:
    """The answer as a stream of objects."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._tokens = dict.fromkeys((job.index for job in form.jobs), 0)
        self._offsets = dict.fromkeys(self._tokens, 0)
        self._jobs = {job.index: job for job in form.jobs}

    def first(self) -> list[dict[str, Any]]:
        """What is known before any token: the role, or the echo."""
        if self._form.chat:
            return [self._chunk(n, {"role": "assistant", "content": ""}) for n in self._jobs]
        return [self._chunk(n, job.shown) for n, job in self._jobs.items() if job.shown]

    def of(self, piece: Piece) -> list[dict[str, Any]]:
        """None, if all of its text is held back."""
        self._tokens[piece.index] = piece.tokens
        job, logprobs = self._jobs[piece.index], None
        if not piece.text and not piece.logprobs and piece.finish is None:
            return []
        if job.top is not None and piece.logprobs:
            logprobs = _logprobs(self._form, job, piece.logprobs, self._offsets[piece.index])
            self._offsets[piece.index] += sum(len(self._form.spelling.text(t.token)) for t in piece.logprobs)
        body: Any = piece.text
        if self._form.chat:
            body = {"content": piece.text} if piece.text or piece.logprobs else {}
        return [self._chunk(piece.index, body, logprobs, piece)]

    def last(self) -> list[dict[str, Any]]:
        """The usage, if it was asked for."""
        told = usage(self._form, self._tokens.values())
        return [{**self._form.head(True), "choices": [], "usage": told}] if self._form.usage else []

    def _chunk(self, index: int, body: Any, logprobs: Any = None, piece: Piece | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta" if self._form.chat else "text": body, "logprobs": logprobs}
        choice["finish_reason"] = None if piece is None else piece.finish
        choice["stop_reason"] = None if piece is None else piece.stop
        out = {**self._form.head(True), "choices": [choice]}
        if self._form.usage:
            out["usage"] = usage(self._form, self._tokens.values()) if self._form.continuous else None
        return out


def _logprobs(form: Form, job: Job, entries: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
    spell = form.spelling
    if form.chat:
        content = []
        for e in entries:
            top = [_chat_logprob(spell, token, logprob) for token, logprob in e.top[: job.top]]
            content.append({**_chat_logprob(spell, e.token, e.logprob), "top_logprobs": top})
        return {"content": content}
    texts = [spell.text(e.token) for e in entries]
    offsets = [offset + sum(map(len, texts[:i])) for i in range(len(texts))]
    tops = None
    if job.top:
        tops = [{spell.text(t): _finite(p) for t, p in (*e.top[: job.top], (e.token, e.logprob))} for e in entries]
    return {
        "tokens": texts,
        "token_logprobs": [_finite(e.logprob) for e in entries],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _chat_logprob(spell: Spelling, token: int, logprob: float) -> dict[str, Any]:
    return {"token": spell.text(token), "logprob": _finite(logprob), "bytes": list(spell.bytes(token))}


def _finite(logprob: float) -> float:
    """JSON has no infinity; -9999 stands for it, as in OpenAI's and vLLM's answers."""
    return max(logprob, -9999.0)
