"""From a checked body to requests of the engine.

Knows: the model's limits, the tokenizer, seeds of several choices. Does not know: HTTP, how answers look.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftline.graph.errors import RequestError
from draftline.stages.sampling.params import Grammar, SamplingParams

from ..request import Request
from ..structured import FIELDS, grammar_of
from ..text import Text
from .errors import bad
from .protocol import MAX_CHOICES, ChatBody, CompletionBody, Generation, Message, TokenizeBody
from .state import Serving

LONG = 2000
"""Characters of a text that is tokenised in another thread, so that streams go on."""


@dataclass(frozen=True)
class Job:
    """A choice of an answer. ``shown``: what stands before the generated text (echo). ``joined``: the request's stop
    strings end the text with themselves rather than before them. ``skip``: special tokens are no text. ``top``:
    log-probabilities beside the chosen token's; None: none are wanted."""

    index: int
    request: Request
    shown: str = ""
    joined: bool = False
    skip: bool = True
    top: int | None = None


async def completion_jobs(body: CompletionBody, serving: Serving) -> list[Job]:
    """One job per prompt and choice. Raises HttpError 400."""
    count = len(body.prompt) * body.n
    if count > MAX_CHOICES:
        raise bad("n", f"{len(body.prompt)} prompts times n={body.n} are {count} sequences; at most {MAX_CHOICES}")
    if body.echo and body.logprobs is not None:
        raise bad("echo", "log-probabilities of prompt tokens are not supported; leave out echo or logprobs")
    if body.max_tokens == 0 and not body.echo:
        raise bad("max_tokens", "must be 1 or more (0 only with echo)")
    text, grammar, out = serving.pipeline.text, await _grammar(body), list[Job]()
    for i, prompt in enumerate(body.prompt):
        where = "prompt" if len(body.prompt) == 1 else f"prompt[{i}]"
        ids = await encoded(text, prompt, body.add_special_tokens) if isinstance(prompt, str) else tuple(prompt)
        check_prompt(ids, where, serving)
        limit = _limit(ids, body.max_tokens, "max_tokens", serving)
        shown = ""
        if body.echo:
            shown = prompt if isinstance(prompt, str) else text.decode(ids, skip_special_tokens=False)
        out += _choices(body, ids, limit, body.logprobs, i * body.n, shown, grammar, serving)
    return out


async def chat_jobs(body: ChatBody, serving: Serving) -> list[Job]:
    """One job per choice. Raises HttpError 400."""
    if body.top_logprobs and not body.logprobs:
        raise bad("top_logprobs", "needs logprobs: true")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise bad("max_tokens", "max_completion_tokens says another limit; give one of them")
    ids = await chat_ids(body, body.messages, body.add_special_tokens, serving)
    check_prompt(ids, "messages", serving)
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    limit = _limit(ids, body.max_completion_tokens or body.max_tokens, name, serving)
    top = body.top_logprobs if body.logprobs else None
    return _choices(body, ids, limit, top, 0, "", await _grammar(body), serving)


async def chat_ids(
    body: ChatBody | TokenizeBody, messages: Sequence[Message], special: bool, serving: Serving
) -> tuple[int, ...]:
    """A conversation's token ids by the model's chat template. Raises HttpError 400."""
    if serving.template is None:
        raise bad(
            "messages",
            "this model has no chat template; use /v1/completions, or start the server with --chat-template FILE",
            "no_chat_template",
        )
    reply = body.add_generation_prompt and not body.continue_final_message
    turns = [m.model_dump(exclude_none=True) for m in messages]
    try:
        text = serving.template.render(
            turns, reply, unfinished=body.continue_final_message, more=body.chat_template_kwargs
        )
    except RequestError as error:
        raise bad("messages", str(error)) from None
    return await encoded(serving.pipeline.text, text, special)


async def encoded(text: Text, prompt: str, special: bool) -> tuple[int, ...]:
    """Token ids; a long text does not hold up other requests meanwhile."""
    if len(prompt) < LONG:
        return text.encode(prompt, add_special_tokens=special)
    return await asyncio.to_thread(text.encode, prompt, add_special_tokens=special)


def check_prompt(ids: Sequence[int], where: str, serving: Serving) -> None:
    """Raises HttpError 400 for a prompt that is empty or too long, or an id that is none of the model's."""
    if not ids:
        raise bad(where, "has no tokens; at least one is needed")
    for i, token in enumerate(ids):
        if not 0 <= token < serving.vocab_size:
            shown = token if abs(token) < 10**18 else "a number of too many digits"
            raise bad(where, f"token {i} is {shown}; the vocabulary has ids 0 … {serving.vocab_size - 1}")
    if len(ids) >= serving.max_len:
        raise bad(
            where,
            f"has {len(ids)} tokens; the model's context holds {serving.max_len} tokens, of which one at least must be"
            " left for the answer",
            "context_length_exceeded",
        )


def _limit(ids: Sequence[int], asked: int | None, name: str, serving: Serving) -> int:
    """New tokens at most: what was asked for, else what the context leaves."""
    room = serving.max_len - len(ids)
    if asked is not None and asked > room:
        raise bad(
            name,
            f"the prompt's {len(ids)} tokens and {name}={asked if asked < 10**18 else '…'} are more than the model's"
            f" context of {serving.max_len} tokens; at most {room} are left",
            "context_length_exceeded",
        )
    return room if asked is None else asked


def _choices(
    body: Generation,
    ids: tuple[int, ...],
    limit: int,
    top: int | None,
    first: int,
    shown: str,
    grammar: Grammar | None,
    serving: Serving,
) -> list[Job]:
    sampling = replace(_sampling(body, top, serving), grammar=grammar)
    if sampling.min_tokens > limit:
        raise bad("min_tokens", f"is {sampling.min_tokens}, more than the {limit} tokens that may be made")
    k = body.num_speculative_tokens
    request = Request(
        ids,
        limit,
        num_speculative_tokens=None if k is None else min(k, serving.pipeline.prepared.sizes.k_max),
        ignore_eos=body.ignore_eos,
        stop=body.stop,
    )
    return [
        Job(
            first + i,
            replace(request, sampling=replace(sampling, seed=nth_seed(sampling.seed, i))),
            shown,
            body.include_stop_str_in_output,
            body.skip_special_tokens,
            top,
        )
        for i in range(body.n)
    ]


def _sampling(body: Generation, top: int | None, serving: Serving) -> SamplingParams:
    for name, ids in (("logit_bias", body.logit_bias), ("stop_token_ids", body.stop_token_ids)):
        for token in ids:
            if not 0 <= token < serving.vocab_size:
                raise bad(name, f"a token id is out of range; the vocabulary has ids 0 … {serving.vocab_size - 1}")
    return SamplingParams(
        temperature=body.temperature,
        top_k=body.top_k if 0 < body.top_k < serving.vocab_size else 0,
        top_p=body.top_p,
        min_p=body.min_p,
        seed=secrets.randbits(63) if body.seed is None else body.seed % 2**63,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=tuple(body.logit_bias.items()),
        min_tokens=body.min_tokens,
        bad_words=_bad_words(body.bad_words, serving.pipeline.text),
        stop_token_ids=tuple(body.stop_token_ids),
        logprobs=top,
    )


async def _grammar(body: Generation) -> Grammar | None:
    """The form that the text is to have; a new one is compiled on trial, and other requests go on meanwhile. Raises
    HttpError 400."""
    asked = {field: value for field in FIELDS if (value := getattr(body, field)) is not None}
    if not asked:
        return None
    try:
        return await asyncio.to_thread(grammar_of, asked)
    except RequestError as error:
        field = next((field for field in FIELDS if str(error).startswith(field)), FIELDS[0])
        raise bad(field, str(error).removeprefix(field).removeprefix(": ")) from None


def _bad_words(words: Sequence[str], text: Text) -> tuple[tuple[int, ...], ...]:
    """Token sequences of words, as they begin a text and as they follow a space where that is another token of the
    same number (the rule of vLLM's SamplingParams). Raises HttpError 400."""
    out: list[tuple[int, ...]] = []
    for i, word in enumerate(words):
        plain, spaced = (text.encode(space + word.lstrip(), add_special_tokens=False) for space in ("", " "))
        if not plain:
            raise bad(f"bad_words[{i}]", "has no tokens")
        out.append(plain)
        if spaced[0] != plain[0] and len(spaced) == len(plain):
            out.append(spaced)
    return tuple(out)


def nth_seed(seed: int, n: int) -> int:
    """The seed of choice ``n``: the first has the request's own, the others are spread by SplitMix64's finaliser
    (Steele, Lea and Flood 2014), cut to 63 bits."""
    if n == 0:
        return seed
    z = (seed + n * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % 2**63
