"""A checkpoint in the form that each peer reads, bf16 in all of them: OpenVINO's IR, GGUF.

Knows: converters and where they write. Does not know: what is in a checkpoint. What is converted already is kept.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .places import Work
from .venvs import call

OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}


def openvino(work: Work, source: Path, out: Path) -> Path:
    """``out``: the IR folder, with weights as bf16 constants. Raises SystemExit if they became something else."""
    if not (out / "openvino_model.bin").is_file():
        part = out.with_name(out.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        tool = work.venv("openvino") / "bin" / "optimum-cli"
        task = ("--task", "text-generation-with-past")
        call(work.log("convert-openvino"), tool, "export", "openvino", "-m", source, *task, part, env=OFFLINE)
        part.rename(out)
    xml = (out / "openvino_model.xml").read_text("utf-8")
    matrices = re.findall(r'<data element_type="(bf16|f16|f32|i8|u8|i4|u4)" shape="\d+, \d+" offset', xml)
    if set(matrices) != {"bf16"}:
        raise SystemExit(f"{out}: matrices are {sorted(set(matrices))}; bf16 is wanted")
    return out


def gguf(work: Work, source: Path, out: Path) -> Path:
    """``out``: the GGUF file in bf16."""
    if not out.is_file():
        script = work.llama_source / "convert_hf_to_gguf.py"
        part = out.with_name(out.name + ".part")
        flags = ("--outtype", "bf16", "--outfile", part)
        call(work.log("convert-gguf"), work.python("llamacpp"), script, *flags, source, env=OFFLINE)
        part.rename(out)
    return out


def form(work: Work, engine: str, source: Path, name: str, role: str) -> Path:
    """The checkpoint ``source`` as ``engine`` reads it, kept under the work folder's model ``name``."""
    out = work.model(name)
    out.mkdir(parents=True, exist_ok=True)
    if engine == "openvino":
        return openvino(work, source, out / f"{role}-ov")
    if engine == "llamacpp":
        return gguf(work, source, out / f"{role}.gguf")
    return source
