"""What clients may ask for: the fields of every endpoint's body, their types and ranges.

Knows: OpenAI's and vLLM's names and defaults. Does not know: tokens, the model's limits.

Types are strict (``"5"`` is no integer) and unknown fields are refused: a misspelt ``temperatur`` that is ignored costs
its sender an afternoon. ``null`` is the same as leaving a field out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from draftline.stages.sampling.params import MAX_LOGPROBS

MAX_CHOICES = 128
"""Most sequences of one HTTP request: prompts times ``n``."""
MAX_STOPS = 16
MAX_LIST = 1024
"""Most entries of logit_bias, stop_token_ids and bad_words."""
INT64 = 2**63

UNSUPPORTED: Mapping[str, Any] = MappingProxyType(
    {
        "suffix": "",
        "best_of": 1,
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "functions": [],
        "function_call": "none",
        "modalities": ["text"],
        "audio": None,
        "prediction": None,
        "reasoning_effort": None,
        "web_search_options": None,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "prompt_logprobs": None,
        "prompt_embeds": None,
        "allowed_token_ids": None,
        "documents": None,
        "chat_template": None,
        "store": False,
        "logits_processors": None,
    }
)
"""Fields that are known and not supported, with the value that asks for nothing."""


def encodable(text: str) -> str:
    """``text`` if it is text: JSON may hold halves of surrogate pairs, which no encoding has."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is not valid Unicode: a lone surrogate at character {error.start}") from None
    return text


Str = Annotated[str, AfterValidator(encodable)]


def _encodable_object(value: dict[str, Any]) -> dict[str, Any]:
    encodable(json.dumps(value, ensure_ascii=False))
    return value


Values = Annotated[dict[str, Any], AfterValidator(_encodable_object)]
"""What a chat template is given besides."""


def _ids(value: Any, where: str = "") -> None:
    for i, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int):
            raise ValueError(f"{where}token ids are integers; entry {i} is of type {_kind(token)}")


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _prompts(value: Any) -> list[str | list[int]]:
    """All four forms as a list of prompts."""
    if isinstance(value, str):
        return [encodable(value)]
    if not isinstance(value, list):
        raise ValueError(f"must be a string, a list of token ids, or a list of either; got {_kind(value)}")
    if not value:
        raise ValueError("must not be an empty list")
    if all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return [list(value)]
    if len(value) > MAX_CHOICES:
        raise ValueError(f"holds {len(value)} prompts; at most {MAX_CHOICES} are taken")
    for i, one in enumerate(value):
        if isinstance(one, str):
            encodable(one)
        elif isinstance(one, list):
            _ids(one, f"prompt {i}: ")
        else:
            raise ValueError(f"prompt {i} must be a string or a list of token ids; got {_kind(one)}")
        if type(one) is not type(value[0]):
            raise ValueError("must not mix strings and token ids")
    return list(value)


def _stops(value: Any) -> tuple[str, ...]:
    many = [value] if isinstance(value, str) else value
    if not isinstance(many, list) or not all(isinstance(s, str) for s in many):
        raise ValueError("must be a string or a list of strings")
    if len(many) > MAX_STOPS:
        raise ValueError(f"holds {len(many)} strings; at most {MAX_STOPS} are taken")
    if not all(many):
        raise ValueError("must not hold an empty string")
    return tuple(encodable(s) for s in many)


def _content(value: Any) -> str:
    """A message's text: a string, or parts of type text, which are joined by line ends as vLLM does."""
    if isinstance(value, str):
        return encodable(value)
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a string or a list of text parts; got {_kind(value)}")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('only parts {"type": "text", "text": "…"} are supported')
        texts.append(encodable(part["text"]))
    return "\n".join(texts)


def _bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object of token id → bias; got {_kind(value)}")
    if len(value) > MAX_LIST:
        raise ValueError(f"holds {len(value)} entries; at most {MAX_LIST} are taken")
    out = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 12):
            raise ValueError(f"keys are token ids; got {ascii(token)[:60]}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token} must be a number from -100 to 100")
        out[int(token)] = float(bias)
    return out


class Fields(BaseModel):
    """Strict fields, of which null ones count as left out: clients send back what they were given."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class Body(Fields):
    """What all bodies share."""

    model: Str | None = None


class StreamOptions(Fields):
    """As in vLLM."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Generation(Body):
    """What completions and chat completions share."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop: Annotated[tuple[str, ...], BeforeValidator(_stops)] = ()
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=INT64)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    logit_bias: Annotated[dict[int, float], BeforeValidator(_bias)] = Field(default_factory=dict)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: list[int] = Field(default_factory=list, max_length=MAX_LIST)
    bad_words: list[Str] = Field(default_factory=list, max_length=MAX_LIST)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    response_format: Values | None = None
    structured_outputs: Values | None = None
    guided_json: Values | Str | None = None
    guided_regex: Str | None = None
    guided_choice: list[Str] | None = None
    num_speculative_tokens: int | None = Field(None, ge=0)
    user: Str | None = None


class CompletionBody(Generation):
    """``/v1/completions``"""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts)]
    max_tokens: int = Field(16, ge=0)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool = True


class Message(Fields):
    """One turn of a conversation."""

    role: Str
    content: Annotated[str, BeforeValidator(_content)]
    name: Str | None = None


class ChatBody(Generation):
    """``/v1/chat/completions``. Without a limit, the answer may take what the context leaves."""

    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: Values = Field(default_factory=dict)


class TokenizeBody(Body):
    """``/tokenize``: a prompt or messages."""

    prompt: Str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=4096)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Values = Field(default_factory=dict)
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """``/detokenize``"""

    tokens: list[int]
