"""Servers that are shared by the tests of this folder, and the text that they should give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from serving import SMALL, Server, template_file

from draftline.runtime.pipeline import Pipeline, open_pipeline


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """tiny-v4 in the server's own process, with a chat template."""
    template = template_file(tmp_path_factory.mktemp("template"))
    with Server(*SMALL, "--chat-template", str(template), "--served-model-name", "tiny", "alias") as one:
        yield one


@pytest.fixture(scope="session")
def plain() -> Iterator[Pipeline]:
    """The same model without speculation, in this process: what is true."""
    with open_pipeline("ar.yaml", num_speculative_tokens=0, max_num_seqs=1) as pipeline:
        yield pipeline


@pytest.fixture(scope="session")
def greedy(plain: Pipeline) -> Callable[[str, int], str]:
    """The text that greedy decoding of a prompt gives."""

    @cache
    def text(prompt: str, tokens: int) -> str:
        (output,) = plain.generate([prompt], max_new_tokens=tokens)
        return plain.text.decode(output.token_ids)

    return text


@pytest.fixture
def begun() -> Iterator[Callable[..., Server]]:
    """Makes servers that the test ends; one that it leaves, because it failed, is killed."""
    made: list[Server] = []

    def make(*flags: str, **options: Any) -> Server:
        made.append(Server(*flags, **options))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()  # nothing happens to one that has ended
        one.process.wait(20)
