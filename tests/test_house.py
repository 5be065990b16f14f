"""The house of DESIGN §2: nothing imports upward; nothing speaks to the network; nothing is pickled."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "graph": {"graph"},
    "stages": {"graph", "stages"},
    "compiler": {"graph", "stages", "compiler"},
    "runtime": {"graph", "stages", "compiler", "runtime"},
}
NETWORK = {"socket", "http", "urllib", "requests", "httpx", "aiohttp", "huggingface_hub", "transformers"}
AUDITED = {
    ROOT / "runtime" / "workers" / "ship.py": {"cloudpickle"},
    ROOT / "runtime" / "serve" / "listen.py": {"socket"},
    ROOT / "runtime" / "bench" / "client.py": {"httpx"},
}
"""The only file that may do each of these things."""
UNSAFE = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path, package: str) -> list[str]:
    """Absolute names of all modules that a file imports, also inside functions."""
    out = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            out += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ""
            if node.level:
                parts = ["draftline", *path.relative_to(ROOT).parent.parts]
                base = ".".join(parts[: len(parts) - node.level + 1]) + "."
            out.append(base + (node.module or ""))
            out += [f"{base}{node.module or ''}.{a.name}".replace("..", ".") for a in node.names]
    return out


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_no_import_runs_upward(folder):
    seen = 0
    for path in sources(folder):
        for name in imports(path, folder):
            parts = name.split(".")
            if parts[0] == "draftline" and len(parts) > 1 and parts[1]:
                assert parts[1] in MAY_IMPORT[folder], f"{path.relative_to(ROOT)} imports {name}"
                seen += 1
            assert parts[0] not in ("benchmarks", "tests"), f"{path.relative_to(ROOT)} imports {name}"
    assert seen


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_no_network_and_no_pickle(folder):
    for path in sources(folder):
        for name in imports(path, folder):
            allowed = AUDITED.get(path, set())
            assert name.split(".")[0] not in (NETWORK | UNSAFE) - allowed, f"{path.relative_to(ROOT)} imports {name}"
            assert name not in ("torch.hub", "torch.load"), path
        assert "eval(" not in path.read_text("utf-8").replace("literal_eval(", ""), path


def test_a_lower_package_imports_without_the_upper_ones():
    code = (
        "import sys, draftline.graph.yaml, draftline.graph.verify, draftline.graph.pictures;"
        "bad = [m for m in sys.modules if m == 'torch' or m.startswith(('draftline.stages', 'draftline.compiler'))];"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_files_stay_small():
    for folder in MAY_IMPORT:
        for path in sources(folder):
            assert len(path.read_text("utf-8").splitlines()) <= 320, path


def test_a_run_opens_no_connection(monkeypatch, capsys):
    import socket

    from draftline.runtime.cli import main

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert main(["--prompt", "x", "--max-new-tokens", "2", "--no-plan-cache"]) == 0
