"""Fixtures for tests that start worker processes: a directory with short paths, and a look at what is left."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from decoding import decode
from leftovers import leftovers

from draftline.runtime.pipeline import open_pipeline


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where run directories are made: paths of Unix sockets must be short, pytest's own are long."""
    tmp_path_factory.getbasetemp()  # pytest's own directories stay where they are
    before = tempfile.tempdir
    path = Path(tempfile.mkdtemp(prefix="dl-"))
    tempfile.tempdir = str(path)
    yield path
    tempfile.tempdir = before
    shutil.rmtree(path)


@pytest.fixture
def clean(base: Path) -> Iterator[Path]:
    """Nothing is there before the test, and nothing after it."""
    assert leftovers(base) == []
    yield base
    gc.collect()
    assert leftovers(base) == []


@pytest.fixture(scope="session")
def truth() -> list[tuple[int, ...]]:
    """K=0 decoding, in this process."""
    with open_pipeline("ar.yaml", max_num_seqs=3) as pipeline:
        return decode(pipeline)
