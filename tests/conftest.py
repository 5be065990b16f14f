"""Options and fixtures of the whole suite: golden files, renewed with ``pytest --update-golden``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


@pytest.fixture(autouse=True)
def _threads() -> None:
    """One thread, whatever the machine has and whatever a pipeline before this test chose: several test processes run
    at once. Where a GEMM's split over threads is what is tested, the module asks for two."""
    torch.set_num_threads(1)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden("compiler/explain-k3.txt", text)``: equal to that file below tests/golden, or a diff."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        assert path.exists(), f"{path} is missing: run pytest --update-golden, read what it wrote, and commit it"
        before = path.read_text("utf-8")
        diff = difflib.unified_diff(before.splitlines(), text.splitlines(), str(path), "now", lineterm="")
        assert before == text, "\n".join(diff)

    return compare
