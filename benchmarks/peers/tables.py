"""The tables of docs/performance.md, as Markdown, from the saved JSON.

Knows: which figures stand where. Does not know: files, charts, how a figure is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .chart import Lines
from .entrants import DRAFT_ALONE, PEERS, STATEFUL, TARGET_ALONE
from .shapes import SHAPES
from .stats import Figures, agreement, best_peer, efficiency, figures, ratio

LABELS: Mapping[str, str] = {
    "draftline": "draftline",
    TARGET_ALONE: "draftline, tile of one row",
    DRAFT_ALONE: "draftline, the draft alone",
    "draftline-mtp": "draftline, MTP head",
    "draftline-ngram": "draftline, n-gram",
    "openvino": "OpenVINO GenAI",
    STATEFUL: "OpenVINO GenAI, stateful",
    "llamacpp": "llama.cpp",
    "vllm": "vLLM-CPU",
    "hf": "transformers",
}
Results = Mapping[str, Any]


def label(entrant: str) -> str:
    """An entrant's name for people."""
    return LABELS.get(entrant) or LABELS[entrant.removesuffix("-ngram")] + ", n-gram"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def known(results: Results, shape: str) -> dict[int, dict[str, Figures]]:
    """Figures of a shape's known race, by K and entrant."""
    found = {h["heat"]["k"]: figures(h["records"]) for h in _heats(results, "known", shape)}
    return {k: found[k] for k in sorted(found) if found[k]}


def _heats(results: Results, kind: str, model: str | None = None) -> list[Mapping[str, Any]]:
    heats = [h for h in results["heats"].values() if h["heat"]["kind"] == kind]
    return [h for h in heats if model in (None, h["heat"]["model"])]


def lines(results: Results, shape: str) -> Lines:
    """The chart's lines: tokens/s by engine and K. draftline's point at K=0 is its tile of T rows."""
    by_k = known(results, shape)
    return {e: {k: f[e].speed for k, f in by_k.items() if e in f} for e in ("draftline", *PEERS)}


def speed_table(results: Results, shape: str) -> str:
    """Tokens/s by entrant and K, then draftline over the best peer."""
    by_k = known(results, shape)

    def row(entrant: str, cell: Callable[[Figures], str]) -> list[str]:
        return [label(entrant), *(cell(f[entrant]) if entrant in f else "" for f in by_k.values())]

    names = [n for n in LABELS if any(n in f for f in by_k.values())]
    rows = [row(n, lambda f: f"{f.speed:.1f}") for n in names]
    against = {k: (f, best_peer(f)) for k, f in by_k.items()}
    rows.append(["best peer", *(label(peer) if peer else "" for _, peer in against.values())])
    for title, pick in (("draftline ÷ best peer", lambda f: f.get("draftline")), ("one row ÷ best peer", _one_row)):
        cells = []
        for f, peer in against.values():
            ours = pick(f)
            cells.append(f"{ratio(ours, f[peer]):.2f}" if ours and peer else "")
        rows.append([f"**{title}**", *cells])
    return markdown([f"{shape}, tokens/s", *(f"K={k}" for k in by_k)], rows)


def _one_row(found: Mapping[str, Figures]) -> Figures | None:
    return found.get(TARGET_ALONE)


def length_table(results: Results) -> str:
    """Tokens per target step, by shape and engine."""
    rows, depths = [], sorted({k for shape in SHAPES for k in known(results, shape) if k})
    for shape in SHAPES:
        by_k = known(results, shape)
        for name in ("draftline", *PEERS):
            cells = [by_k[k][name].length if k in by_k and name in by_k[k] else None for k in depths]
            if any(c is not None for c in cells):
                rows.append([f"{shape}, {LABELS[name]}", *("" if c is None else f"{c:.2f}" for c in cells)])
    return markdown(["tokens per step", *(f"K={k}" for k in depths)], rows)


def efficiency_table(results: Results) -> str:
    """Gain of speculation against length ÷ (1 + draft share)."""
    rows = []
    for shape in SHAPES:
        by_k = known(results, shape)
        for k, found in by_k.items():
            e = efficiency(by_k.get(0, {}), found["draftline"], k) if k and "draftline" in found else None
            if e:
                cells = (f"{e.length:.2f}", f"{e.share:.2f}", f"{e.bound:.2f}", f"{e.gain:.2f}")
                rows.append([f"{shape}, K={k}", *cells, f"**{e.gain / e.bound:.2f}**"])
    return markdown(["draftline", "length", "draft share", "length ÷ (1 + share)", "speed-up", "reached"], rows)


def streaming_table(results: Results) -> str:
    """K=0 against the time that reading the weights takes."""
    rows = []
    for shape, sizes in SHAPES.items():
        nbytes, found = sizes.weight_bytes(sizes.layers), known(results, shape).get(0, {})
        bound = results["bandwidth"] / nbytes
        for name in ("draftline", TARGET_ALONE, *PEERS, STATEFUL):
            if name in found:
                cells = (f"{nbytes / 1e6:.0f}", f"{bound:.1f}", f"{found[name].speed:.1f}")
                rows.append([f"{shape}, {label(name)}", *cells, f"**{found[name].speed / bound:.2f}**"])
    return markdown(["K=0", "weights, MB", "bound, tokens/s", "tokens/s", "share of the bound"], rows)


def memory_table(results: Results) -> str:
    """Largest resident size of each process tree."""
    rows = []
    heats = [h for kind in ("known", "real") for h in _heats(results, kind)]
    names = list(dict.fromkeys(n for h in heats for n in h["entrants"] if n != DRAFT_ALONE))
    columns = {
        "135m, K=0": "known-135m-k0-b1",
        "135m, K=8": "known-135m-k8-b1",
        "0.5b, K=0": "known-0.5b-k0-b1",
        "0.5b, K=8": "known-0.5b-k8-b1",
        "SmolLM2, batch 1": "real-smollm2-drafted-b1",
        "SmolLM2, batch 8": "real-smollm2-drafted-b8",
    }
    for name in names:
        cells = [results["heats"].get(c, {"entrants": {}})["entrants"].get(name, {}) for c in columns.values()]
        if any("peak_bytes" in c for c in cells):
            rows.append([label(name), *(f"{c['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in c else "" for c in cells)])
    return markdown(["GiB", *columns], rows)


def real_table(results: Results, batch: int) -> str:
    """SmolLM2 with each engine's best drafter: per suite tokens/s, tokens per step, over its own K=0."""
    heats = {h["heat"]["k"]: h for h in _heats(results, "real") if h["heat"]["batch"] == batch}
    rows = []
    every = [r for h in heats.values() for r in h["records"]]
    for suite in dict.fromkeys(r["suite"] for r in every):
        found = figures(every, suite)
        plain = heats.get(0, {"records": []})["records"]
        same = agreement([r for r in every if r["suite"] == suite], plain)
        peer = best_peer(found)
        for name in (n for h in heats.values() for n in h["entrants"] if n in found):
            f, own = found[name], found.get(name.partition("-")[0])
            k = next(h["entrants"][name]["k"] for h in heats.values() if name in h["entrants"])
            length = "" if f.length is None else f"{f.length:.2f}"
            gain = "" if own is None or own is f else f"{ratio(f, own):.2f}"
            over = f"{ratio(f, found[peer]):.2f}" if peer and name.startswith("draftline") else ""
            texts = "" if own is f or name not in same else "{}/{}".format(*same[name])
            rows.append([suite, label(name), str(k), f"{f.speed:.1f}", length, gain, over, texts])
    head = ["suite", "engine", "K", "tokens/s", "tokens/step", "over own K=0", "over best peer", "texts as at K=0"]
    return markdown(head, rows)


def setting(results: Results) -> str:
    """Machine, bandwidth, versions, and who could not run and why."""
    m = results["machine"]
    used: dict[str, dict[str, str]] = {}
    for h in results["heats"].values():
        for e in h["entrants"].values():
            used.setdefault(e["engine"], {}).update(e.get("versions", {}))
    lines = [
        f"- Machine: {m['cpu']}, {m['cores']} cores ({', '.join(m['flags'])}), {m['memory_bytes'] / 2**30:.0f} GiB; "
        f"{m['threads']} threads; load average {m['load_before']:.2f} before the run.",
        f"- Read bandwidth: {results['bandwidth'] / 1e9:.1f} GB/s.",
    ]
    for engine, versions in used.items():
        lines.append(f"- {LABELS[engine]}: " + ", ".join(f"{n} {v}" for n, v in sorted(versions.items())) + ".")
    errors = [
        f"- Did not run: {label(n)} in {name}: {e['error'].partition('; see ')[0]}."
        for name, h in results["heats"].items()
        for n, e in h["entrants"].items()
        if "error" in e
    ]
    return "\n".join(lines + errors)
