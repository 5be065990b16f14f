"""Build the training corpus of tiny-v4 and its tokenizer from Python's own sources and documentation.

Knows: which files, which are held out, how text becomes token ids. Does not know: the model.

Texts: the running interpreter's standard library and the reStructuredText sources of Python's
documentation (Debian's package python3.11-doc). Both are under the PSF licence. Whole files are held
out by the hash of their name, so a new release moves no file from one side to the other.

    python -m benchmarks.training.corpus --out DIR
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SKIPPED_PARTS = {"site-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data", "encodings", "lib2to3"}
BEGIN, END = "<|begin|>", "<|end|>"
VOCAB = 4096
DOCS = Path("/usr/share/doc/python3.11/html/_sources")
"""Where Debian's package python3.11-doc puts the sources of Python's documentation."""
# Words with their leading space, numbers by up to three digits, runs of newlines with the indentation that
# follows them, runs of punctuation: code's common shapes become single tokens.
SPLIT = r"\n+[ \t]*| ?[A-Za-z_][A-Za-z]*| ?\d{1,3}| ?[^\sA-Za-z_\d]+|[ \t]+|\s+"


@dataclass(frozen=True)
class Text:
    """One file: ``name`` is its path inside its source, ``kind`` code or docs."""

    name: str
    kind: str
    text: str

    @property
    def held_out(self) -> bool:
        """About one file in 25."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big") % 25 == 0


def _read(path: Path) -> str | None:
    """The file's text, or None if it is no UTF-8, empty, or a table rather than prose or code."""
    try:
        text = path.read_text("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None
    lines = text.splitlines()
    if not lines or max(map(len, lines)) > 1000:
        return None
    return text


def collect(stdlib: Path, docs: Path) -> list[Text]:
    """All usable files of both sources, sorted by name."""
    out = []
    for root, pattern, kind in ((stdlib, "*.py", "code"), (docs, "*.rst.txt", "docs")):
        for path in sorted(root.rglob(pattern)):
            relative = path.relative_to(root)
            if kind == "code" and SKIPPED_PARTS & set(relative.parts):
                continue
            text = _read(path)
            if text is not None:
                out.append(Text(f"{kind}/{relative.as_posix()}", kind, text))
    return out


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: every text has an exact round trip."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[Text]) -> dict[str, list[int]]:
    """Each file's ids between begin and end."""
    begin, end = tokenizer.token_to_id(BEGIN), tokenizer.token_to_id(END)
    return {
        t.name: [begin, *e.ids, end]
        for t, e in zip(texts, tokenizer.encode_batch([t.text for t in texts]), strict=True)
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--docs", type=Path, default=DOCS)
    p.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    if not args.docs.is_dir():
        p.error(f"--docs {args.docs}: no such folder; on Debian: apt-get install python3.11-doc")
    texts = collect(args.stdlib, args.docs)
    random.Random(args.seed).shuffle(texts)
    train, held = [t for t in texts if not t.held_out], [t for t in texts if t.held_out]
    tokenizer = train_tokenizer([t.text for t in train])
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    meta: dict[str, object] = {"python": platform.python_version(), "seed": args.seed, "licence": "PSF-2.0"}
    for side, files in (("train", train), ("heldout", held)):
        ids = encode(tokenizer, files)
        np.concatenate([np.asarray(v, dtype="<u2") for v in ids.values()]).tofile(args.out / f"{side}.bin")
        for kind in ("code", "docs"):
            chosen = [t for t in files if t.kind == kind]
            meta[f"{side}.{kind}"] = {
                "files": len(chosen),
                "bytes": sum(len(t.text.encode()) for t in chosen),
                "tokens": sum(len(ids[t.name]) for t in chosen),
            }
    for t in held:
        path = args.out / "heldout" / t.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(t.text, "utf-8")
    (args.out / "meta.json").write_text(json.dumps(meta, indent=1))
    print(json.dumps(meta, indent=1))


if __name__ == "__main__":
    main()
