#!/usr/bin/env python3
"""Writes docs/measurements.md and the tables of README.md from the records in benchmarks/results.

A table of README.md stands between `<!-- measured: NAME -->` and `<!-- /measured -->`; which cells it has is said here.

python tools/measurements.py            # after a record was made anew
python tools/measurements.py --check    # whether they are what the records say; writes nothing
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass.bench.standing import BEHIND
from onepass.bench.views import said

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/measurements.md"
README = ROOT / "README.md"

INTRODUCTION = """# Measurements

Every cell of every record in [benchmarks/results](../benchmarks/results), written by `tools/measurements.py`.
[benchmarks/README.md](../benchmarks/README.md) has the commands that made them, and what a number means: contenders are
verified, then interleaved; compare figures of one record only.

CPU: milliseconds, a fresh result and, after the stroke, into `out=` (onnxruntime: bound). GPU: microseconds of the
GPU's work for a fresh result. "Of a copy" is bytes per second, of those that must move, against a copy of as many
in the same run; a reduction writes next to nothing, so it may pass 100%. "Is, of torch": how many times faster
onepass is, like for like. Variants are onepass's own kernels with an algorithm or a parameter held fixed: their
times over the plan's.
"""

# Folder under benchmarks/results: what it was measured on, and its records in the order of the page.
MACHINES = {
    "epyc-zen5-2core": ("Two cores of an AMD EPYC, Zen 5: AVX-512, 32 MiB L3", ("run",)),
    "epyc-zen4-2core": ("Two cores of an AMD EPYC, Zen 4: AVX-512, 32 MiB L3", ("run", "views")),
    "epyc-zen3-2core": ("Two cores of an AMD EPYC, Zen 3: AVX2, 32 MiB L3", ("run",)),
    "xeon-emerald-16core": ("Sixteen cores of an Intel Xeon, Emerald Rapids: AVX-512, 300 MiB L3", ("run", "everyday")),
    "xeon-6-106-2.8ghz-2core": ("Two cores of an Intel Xeon, Ice Lake, 2.8 GHz: AVX-512", ("softmax",)),
    "h200": (
        "One NVIDIA H200",
        (
            *("tables", "plane_float32", "plane_bfloat16", "long_rows", "kernels", "backward"),
            *("everyday", "columns", "views"),
        ),
    ),
}

# Tables of README.md: contenders, and of which records which cells.
README_TABLES: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "cpu": (
        ("torch", "onnxruntime"),
        {
            "epyc-zen5-2core/run": (
                *("softmax-4096x1024", "softmax-32768x128", "softmax-1024x32768", "softmax-128x262144"),
                *("softmax-8x2097152", "softmax-1x16777216", "softmax-32x256x56x56-dim1"),
                *("softmax-4096x4096-bfloat16", "softmax-666666x3", "log_softmax-4096x1024"),
                *("log_softmax-128x262144", "logsumexp-1024x32768", "sum-128x262144", "amax-4096x4096-bfloat16"),
                *("softmax_backward-128x262144", "softmax_backward-8x21x512x512-dim1"),
            )
        },
    ),
    "gpu": (
        ("torch", "torch.compile", "quack", "liger"),
        {
            "h200/plane_float32": (
                *("plane_float32-softmax-65536x32", "plane_float32-softmax-65536x1000"),
                *("plane_float32-softmax-8x8192", "plane_float32-softmax-512x32768"),
                *("plane_float32-softmax-4096x50257", "plane_float32-softmax-1x4194304"),
            ),
            "h200/tables": ("seeds-softmax-128x262144", "seeds-softmax-128x2097152"),
            "h200/plane_bfloat16": (
                *("plane_bfloat16-softmax-65536x2048-bfloat16", "plane_bfloat16-softmax-4096x50257-bfloat16"),
                "plane_bfloat16-softmax-4096x128256-bfloat16",
            ),
            "h200/kernels": (
                *("strided-softmax-32x256x56x56-dim1", "strided-softmax-64x1000x196-dim1"),
                *("strided-softmax-4096x4096-dim0", "ops-logsumexp-4096x128256-bfloat16"),
            ),
            "h200/everyday": (
                *("short-softmax-4194304x3", "short-log_softmax-262144x33"),
                "runs-softmax-3x678102x43-dim1",
            ),
            "h200/backward": (
                *("backward-softmax_backward-32768x4096-bfloat16", "backward-softmax_backward-2048x32768"),
                *("backward-softmax_backward-4096x50257-bfloat16", "backward-softmax_backward-8x21x512x512-dim1"),
            ),
        },
    ),
}

Record = dict[str, Any]
Cell = dict[str, Any]


def read_record(name: str) -> Record:
    record: Record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return record


# ---- cells ----


def outcome_of(cell: Cell, label: str) -> Record:
    return next((o for o in cell["outcomes"] if o["label"] == label and o["status"] == "ok"), {})


def title_of(cell: Cell) -> str:
    shape = " x ".join(map(str, cell["shape"]))
    dim = f", dim {cell['dim']}" if cell["dim"] != -1 else ""
    asked = f", from {cell['input']}" if cell["group"] in ("calls", "numpy") else ""
    op = cell["op"]
    named = f"gradient of {op.removesuffix('_backward')}" if op.endswith("_backward") else op
    return f"{named} {shape} {cell['dtype']}{dim}{said(cell.get('view', {}))}{asked}"


def digits(value: float) -> str:
    """Three of them, and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def times_of(cell: Cell, label: str, unit: float, both: bool) -> str:
    fresh, out = (outcome_of(cell, name).get("seconds") for name in (label, f"{label} out="))
    if not both:
        return "-" if fresh is None else digits(fresh / unit)
    known = [digits(seconds / unit) if seconds else "-" for seconds in (fresh, out)]
    return "-" if known == ["-", "-"] else " / ".join(known)


def ratios_of(cell: Cell, label: str, both: bool) -> str:
    labels = (label, f"{label} out=") if both else (label,)
    ratios = [outcome_of(cell, name).get("onepass_is_times_faster") for name in labels]
    known = [f"{ratio:.2f}x" if ratio else "-" for ratio in ratios]
    return "-" if set(known) == {"-"} else " / ".join(known)


def variants_of(cell: Cell, known: Sequence[str]) -> str:
    plan = outcome_of(cell, "onepass out=").get("seconds")
    others = [o for o in cell["outcomes"] if o["mode"] == "out" and o["status"] == "ok" and o["peer"] not in known]
    return ", ".join(f"{o['peer']} {o['seconds'] / plan:.2f}" for o in others)


def table_of(gpu: bool, cells: Sequence[Cell], contenders: Sequence[str], brief: bool = False) -> list[str]:
    """`brief`: how many times faster than the first contender alone, and no variants."""
    unit = 1e-6 if gpu else 1e-3
    compared = contenders[:1] if brief else contenders
    variants = [variants_of(cell, ["onepass", *contenders]) if gpu and not brief else "" for cell in cells]
    heads = ["", "algorithm", "onepass", *contenders, *(["copy"] if gpu else []), "of a copy"]
    heads += [*(f"is, of {name}" for name in compared), *(["variants"] if any(variants) else [])]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for cell, variant in zip(cells, variants, strict=True):
        copy = outcome_of(cell, "copy").get("seconds")
        share = outcome_of(cell, "onepass").get("fraction_of_copy")
        columns = [title_of(cell), f"`{cell['algorithm']}`", times_of(cell, "onepass", unit, not gpu)]
        columns += [times_of(cell, name, unit, not gpu) for name in contenders]
        columns += [digits(copy / unit) if copy else "-"] * gpu
        columns += ["-" if share is None else f"{share:.0%}"]
        columns += [ratios_of(cell, name, both=not gpu) for name in compared]
        columns += [variant] * any(variants)
        lines.append(f"| {' | '.join(columns)} |")
    return lines


# ---- what follows from them ----


def peers_of(record: Record) -> list[str]:
    return [name for name, version in record["contenders"].items() if version and name != "onepass"]


def means_of(record: Record, peers: Sequence[str]) -> list[str]:
    """Geometric means, and in brackets the worst cell."""
    heads = ["geometric mean, at worst", "cells", *(f"of {name}" for name in peers)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for group, found in record["summary"].items():
        columns = [group, str(found["onepass"]["cells"])]
        for name in peers:
            known = [found[label] for label in (name, f"{name} out=") if found.get(label, {}).get("ratio")]
            columns.append(" / ".join(f"{mean['ratio']:.2f}x ({mean['worst_ratio']:.2f}x)" for mean in known) or "-")
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def behind_in(record: Record, peers: Sequence[str]) -> list[str]:
    """Every cell in which a contender is ahead by more than the benchmark calls equal."""
    found = []
    for cell in record["cells"]:
        for name in peers:
            for label in (name, f"{name} out="):
                ratio = outcome_of(cell, label).get("onepass_is_times_faster")
                if ratio and ratio * BEHIND < 1:
                    found.append(f"{title_of(cell)}: {label} ({ratio:.2f}x)")
    if not found:
        return [f"No contender is more than {BEHIND - 1:.0%} ahead in any cell."]
    return [f"Ahead by more than {BEHIND - 1:.0%}, of {len(record['cells'])} cells:", "", *(f"- {f}" for f in found)]


def section_of(name: str) -> list[str]:
    record = read_record(name)
    peers = peers_of(record)
    versions = ", ".join(f"{peer} {record['contenders'][peer].partition('+')[0]}" for peer in peers)
    made = record["date"].replace("T", " ")[:16]
    source = f"[{name.partition('/')[2]}](../benchmarks/results/{name}.json), {made} UTC; {versions}."
    return [
        f"### {name.partition('/')[2]}",
        "",
        source.replace(" unknown", ""),
        "",
        *means_of(record, peers),
        "",
        *behind_in(record, peers),
        "",
        *table_of("gpu" in record["machine"], record["cells"], peers),
    ]


# ---- the two files ----


def page() -> str:
    parts = [INTRODUCTION.rstrip()]
    for folder, (machine, records) in MACHINES.items():
        parts.append(f"## {machine}")
        parts += ["\n".join(section_of(f"{folder}/{name}")) for name in records]
    return "\n\n".join(parts) + "\n"


def readme_table(name: str) -> str:
    contenders, wanted = README_TABLES[name]
    found = []
    for source, names in wanted.items():
        cells = {cell["name"]: cell for cell in read_record(source)["cells"]}
        found += [cells[cell] for cell in names]
    return "\n".join(table_of(name == "gpu", found, contenders, brief=True))


def with_tables(text: str) -> str:
    block = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- /measured -->)", re.DOTALL)
    return block.sub(lambda found: f"{found[1]}{readme_table(found[2])}\n{found[3]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is not up to date")
    check = parser.parse_args().check
    stale = []
    for path, text in ((PAGE, page()), (README, with_tables(README.read_text(encoding="utf-8")))):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.exit(f"not what the records say: {', '.join(stale)}; run tools/measurements.py")
    print(f"{'stale' if check else 'written'}: {', '.join(stale)}" if stale else "up to date")


if __name__ == "__main__":
    main()
