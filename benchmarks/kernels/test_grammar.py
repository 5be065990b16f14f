"""Speed of structured output: grammars compiled, vocabularies read, masks made and the rows of a wave constrained.

    python -m pytest benchmarks/kernels/test_grammar.py --benchmark-enable

Each benchmark also checks its result. ``extra_info`` carries states and tokens.
"""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from draftline.runtime import grammars
from draftline.stages.grammar.automaton import compile_regex
from draftline.stages.grammar.forms import regex_of
from draftline.stages.grammar.matcher import Grammars, Matcher
from draftline.stages.grammar.rows import Constraints
from draftline.stages.grammar.tokens import Tokens, read_tokens, tokens_of
from draftline.stages.models.places import resolve
from draftline.stages.sampling.params import Grammar, SamplingParams
from draftline.stages.sampling.sampler import Before, WaveRows
from draftline.stages.sampling.wire import tenant

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age"],
}
MADE = {"person": Grammar("json_schema", json.dumps(PERSON)), "any object": Grammar("json_object")}
TEXT = b'{"name": "Ada", "age": 36'


@pytest.fixture(scope="module", params=[4096, 49152, 129280])
def tokens(request) -> Tokens:
    """tiny-v4's tokens, then two of them at a time: as many as tiny-v4, SmolLM2 and DeepSeek V4 have."""
    own = read_tokens(resolve("tiny-v4"), 4096, (1,)).text
    twos = (a + b for a, b in itertools.product(list(own.values())[256:700], repeat=2))
    more = dict(enumerate(itertools.islice(twos, request.param - 4096), 4096))
    return tokens_of({**own, **more}, request.param, (1,))


@pytest.mark.parametrize("name", MADE)
def test_compile(benchmark, name):
    automaton = benchmark(lambda: compile_regex(regex_of(MADE[name])))
    benchmark.extra_info.update(states=len(automaton.table))
    assert automaton.matches(TEXT + b"}")


def test_try_in_a_process_of_its_own(benchmark):
    def fresh() -> str:
        grammars.fault.cache_clear()
        return grammars.fault(MADE["person"])

    assert benchmark.pedantic(fresh, rounds=5) == ""


@pytest.mark.parametrize("text", [b"", b'{"name": "A', TEXT], ids=["brace only", "in a string", "behind a number"])
@pytest.mark.parametrize("name", MADE)
def test_mask_of_a_new_state(benchmark, tokens, name, text):
    matcher = Matcher(compile_regex(regex_of(MADE[name])), tokens)
    state = matcher._automaton.run(matcher.start, text)
    mask = benchmark(lambda: matcher._mask(state))
    benchmark.extra_info.update(tokens=tokens.vocab_size, allowed=int(mask.sum()))
    one = int(mask.nonzero()[0])
    assert matcher.advance(state, one) != 0


def test_rows_of_a_wave(benchmark, tokens):
    """Eight rows of one request that is 1000 tokens in, whose states were met before."""
    own = tokens_of({b: bytes([b]) for b in range(256)}, tokens.vocab_size, (256,))
    constraints = Constraints(Grammars(lambda: own))
    who = tenant(1, SamplingParams(grammar=Grammar("regex", "[a-z ]*")), 4)
    history = torch.randint(97, 122, (1, 1024))
    window = torch.randint(97, 122, (1, 8))
    columns = torch.arange(8)
    wave, before = WaveRows(torch.zeros(8, dtype=torch.int64), 1003 + columns, columns), Before(history, window)
    allowed = benchmark(lambda: constraints.allowed({0: who}, wave, before, tokens.vocab_size))
    assert allowed is not None
    assert int(allowed.sum()) == 8 * 28
