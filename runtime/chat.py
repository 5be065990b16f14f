"""A model's chat template, rendered as ``transformers`` does.

Knows: ``tokenizer_config.json``, ``chat_template.jinja``, what templates may call. Does not know: tokens, HTTP.

Templates are code that comes with a model: they run in jinja2's sandbox, without access to Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftline.graph.errors import ModelError, RequestError

CONFIG, PLAIN = "tokenizer_config.json", "chat_template.jinja"
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """A template with the special tokens that it may name."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Raises jinja2.TemplateError for a template that cannot be parsed."""
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        env.filters["tojson"] = _tojson
        env.globals["raise_exception"] = _raise
        env.globals["strftime_now"] = _strftime_now
        self._template, self._tokens = env.from_string(source), dict(tokens)

    @classmethod
    def of(cls, folder: Path, file: Path | None = None) -> ChatTemplate | None:
        """The template in ``file``, else the folder's, or None. Raises ModelError if it cannot be read."""
        config, plain = folder / CONFIG, file or folder / PLAIN
        try:
            raw = json.loads(config.read_text("utf-8")) if config.is_file() else {}
            given = file is not None or plain.is_file()
            source = plain.read_text("utf-8") if given else _default(raw.get("chat_template"))
            tokens = {name: text for name in _TOKENS if (text := _content(raw.get(name))) is not None}
            return cls(source, tokens) if isinstance(source, str) else None
        except (OSError, ValueError, AttributeError, jinja2.TemplateError) as error:
            raise ModelError(f"{file or folder}: its chat template cannot be read: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        reply: bool = True,
        *,
        unfinished: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation; with ``reply``, up to where the assistant speaks; ``unfinished``: up to the end
        of the last message's text, which is to be gone on with. ``more``: further values for the template. Raises
        RequestError with what the template says of messages that it does not take."""
        values = {**self._tokens, **(more or {}), "messages": messages, "add_generation_prompt": reply}
        try:
            text = self._template.render(values)
        except Exception as error:  # a template may fail in any way on messages that it was not written for
            raise RequestError(f"the chat template does not take these messages: {error}") from None
        if not unfinished:
            return text
        last = str(messages[-1]["content"]).strip()
        end = text.rfind(last)
        if not last or end < 0:
            raise RequestError("the chat template changes the last message's text, so that it cannot be gone on with")
        return text[: end + len(last)]

    def opening(self) -> tuple[str, str]:
        """What stands before the user's first words, and between them and the assistant's."""
        mark = "\0"
        before, _, after = self.render([{"role": "user", "content": mark}]).partition(mark)
        return before, after


def _default(found: Any) -> Any:
    """A model may have several templates by name; the one named default is for conversations."""
    if isinstance(found, list):
        return {t.get("name"): t.get("template") for t in found}.get("default")
    return found


def _content(token: Any) -> str | None:
    """A special token stands there as a string, or as an object."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)
