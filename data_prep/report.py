"""What preparation did, for people: tables, the same as JSON, and a picture of the lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from .bitext import SPLITS
from .clean import RULES
from .lengths import percentiles
from .stage import Stage, digest_of, run_stage

PERCENTILES = (50, 90, 97.5, 99)
COLOURS = ("#0072B2", "#D55E00")  # of Okabe and Ito: told apart by everyone


def report_stage(
    stages: tuple[Stage, Stage, Stage, Stage], published_length: float | None, root: Path
) -> Stage:
    """``report.md``, ``report.json`` and ``lengths.svg`` of the chain's stages."""
    parts = {stage.manifest["stage"]: stage.manifest["report"] for stage in stages}

    def build(folder: Path) -> dict[str, Any]:
        summary = summarise(parts, published_length)
        text = json.dumps(summary, indent=1, ensure_ascii=False)
        (folder / "report.json").write_text(text + "\n", encoding="utf-8")
        (folder / "report.md").write_text(to_markdown(summary), encoding="utf-8")
        draw(parts["subword"]["files"], summary, folder / "lengths.svg")
        return {}

    options = {"published_length": published_length}
    return run_stage(root, "report", 2, options, {"reports": digest_of(parts)}, build)


def summarise(parts: dict[str, Any], published_length: float | None) -> dict[str, Any]:
    """The figures of the tables.

    ``lines``: of each split, pairs that came in (``in``), that lacked a side (``missing``), that
    each rule dropped, that went out (``out``), and lines of which stray characters were replaced.
    ``files``: of each file, words and subword tokens, their types, percentiles of its lengths.
    ``percentiles``: of the lengths of both sides of train, from which g may start.
    """
    bitext, cleaned, binarised = parts["bitext"], parts["clean"], parts["binarised"]
    lines = {}
    for split in SPLITS:
        read = bitext[split]
        lines[split] = {
            "in": read["lines"] + read["missing"],
            "missing": read["missing"],
            **{rule: cleaned[split].get("dropped", {}).get(rule, 0) for rule in RULES},
            "out": cleaned[split]["lines"],
            "stray characters": read["replaced"],
        }
    langs = (binarised["source_lang"], binarised["target_lang"])
    files = {}
    for name in (f"{split}.{lang}" for split in SPLITS for lang in langs):
        file = parts["subword"]["files"][name]
        lengths = np.repeat([int(n) for n in file["lengths"]], list(file["lengths"].values()))
        shares = {} if name.startswith("train.") else unseen(file, cleaned["overlap"][name])
        files[name] = {
            **{key: file[key] for key in ("words", "word_types", "tokens", "types")},
            "percentiles": {str(p): float(np.percentile(lengths, p)) for p in PERCENTILES},
            "longest": file["longest"]["tokens"],
            "lossy_lines": file["lossy_lines"],
            "lossy": file["lossy"],
            **shares,
        }
    return {
        "pair": f"{binarised['source_lang']}-{binarised['target_lang']}",
        "source": {key: bitext[key] for key in ("source", "terms") if key in bitext},
        "subwords": binarised["subwords"],
        "lines": lines,
        "files": files,
        "length_percentile": binarised["length_percentile"],
        "percentiles": percentiles(parts["subword"]["files"]),
        "published_length": published_length,
        "g_init": binarised["g_init"],
    }


def unseen(file: dict[str, Any], overlap: int) -> dict[str, Any]:
    """What a dev or test file has that train does not, and the other way round."""
    return {
        "unseen_word_types": file["unseen_word_types"],
        "unseen_share": round(file["unseen_word_types"] / max(file["word_types"], 1), 4),
        "unknown_tokens": file["unknown_tokens"],
        "lines_in_train": overlap,
    }


def to_markdown(summary: dict[str, Any]) -> str:
    subwords = summary["subwords"]
    parts = [f"# {summary['pair']}", ""]
    if summary["source"]:
        source = summary["source"]
        parts += [f"From `{source['source']}`. Terms of use: {source['terms']}", ""]
    rows = [{"pairs": split, **counts} for split, counts in summary["lines"].items()]
    columns = [c for c in rows[0] if c in ("pairs", "in", "out") or any(row[c] for row in rows)]
    parts += [markdown([{c.replace("_", " "): row[c] for c in columns} for row in rows]), ""]
    parts += [markdown([file_row(*item) for item in summary["files"].items()]), ""]
    parts += [
        f"Subwords: {subwords['method']}, size {subwords['size']}. Lengths are in subword tokens, "
        "without the end of sentence; *unseen* word types are not in train; *unknown* tokens are "
        "not in the dictionary; *in train*: lines that also stand in train; *lossy*: lines that "
        "undoing the subwords does not give back.",
        "",
        length_line(summary),
    ]
    for name, file in summary["files"].items():
        if file["lossy"]:
            numbers = ", ".join(map(str, file["lossy"]))
            parts += ["", f"Not given back: {name}, lines {numbers}."]
    return "\n".join(parts) + "\n"


def file_row(name: str, file: dict[str, Any]) -> dict[str, Any]:
    held_out = "unseen_share" in file
    return {
        "file": name,
        "words": file["words"],
        "types": file["word_types"],
        "unseen": f"{file['unseen_share']:.1%}" if held_out else "",
        "subword tokens": file["tokens"],
        "subword types": file["types"],
        "unknown": file["unknown_tokens"] if held_out else "",
        **{f"p{p}": f"{length:g}" for p, length in file["percentiles"].items()},
        "longest": file["longest"],
        "in train": file["lines_in_train"] if held_out else "",
        "lossy": file["lossy_lines"],
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    return tabulate(rows, headers="keys", tablefmt="github")


def length_line(summary: dict[str, Any]) -> str:
    """L, g's start, and L as published if that is known."""
    line = f"L, the 97.5th percentile over both sides of train: {summary['length_percentile']:g}"
    if summary["published_length"]:
        line += f" (published: {summary['published_length']:g})"
    if summary["g_init"] is not None:
        line += f"; g starts at {summary['g_init']:.4f}"
    return line + "."


def draw(files: dict[str, Any], summary: dict[str, Any], path: Path) -> None:
    """Histogram of the lengths of both sides of train."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    names = [name for name in summary["files"] if name.startswith("train.")]
    longest = max(int(n) for name in names for n in files[name]["lengths"])
    edges = np.linspace(0, longest + 1, min(longest + 1, 60) + 1)
    for name, colour in zip(names, COLOURS, strict=True):
        lengths = files[name]["lengths"]
        axes.hist(
            [int(n) for n in lengths],
            list(edges),
            weights=list(lengths.values()),
            histtype="step",
            color=colour,
            linewidth=1.8,
            label=name.removeprefix("train."),
        )
    axes.axvline(
        summary["length_percentile"],
        color="#555555",
        linestyle="--",
        label=f"L = {summary['length_percentile']:g} (97.5% of both)",
    )
    axes.set(xlabel="length (subword tokens)", ylabel="training sentences", title=summary["pair"])
    axes.legend(frameon=False)
    with mpl.rc_context({"svg.hashsalt": summary["pair"], "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
