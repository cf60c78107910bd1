"""Figures and tables from results of `scan.py`, `fused.py` and `grid.py`, and from nothing else.

    python benchmarks/figures.py [RESULT.json] [--fused RESULT.json] [--grid RESULT.json ...]
        [--out FOLDER] [--pages FOLDER]

Without a result the newest one in benchmarks/results, and all of grid.py's. Draws fractions.png,
operators.png and those of `grid_figures.py` into `--out`, and writes the tables between the markers in
README.md and docs/performance.md under `--pages`. Where there is no result of fused recurrences, or beside
peers, the pages have no such section.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout runs, installed or not

from benchmarks import fused_tables, grid_figures, grid_tables
from benchmarks.record import RESULTS, ROOT
from benchmarks.tables import (
    BACKWARD,
    DIRECTIONS,
    FORWARD,
    PAGES,
    SHORT,
    TRAINING,
    distinct,
    filled,
    one,
    select,
    shape,
    tables,
)

GRID = "*-grid-*.json"  # results of grid.py
TARGETS = {"float32": 0.90, "bfloat16": 0.80}  # of a copy: what a forward scan in (b, t, d) is to reach
COLOURS = {FORWARD: "#1f77b4", TRAINING: "#8fbbda", BACKWARD: "#ff7f0e"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, nargs="?", help="the newest in benchmarks/results by default")
    parser.add_argument("--fused", type=Path, help="of fused.py, the newest in benchmarks/results by default")
    parser.add_argument(
        "--grid", type=Path, nargs="+", help="of grid.py, all in benchmarks/results by default"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="the figures' folder")
    parser.add_argument("--pages", type=Path, default=ROOT, help="the folder of README.md and docs/")
    options = parser.parse_args()
    path = options.result or newest(RESULTS)
    if path is None:
        raise SystemExit("There is no result in benchmarks/results: run benchmarks/scan.py on a GPU.")
    result = load(path)
    options.out.mkdir(parents=True, exist_ok=True)
    draw_fractions(result, options.out / "fractions.png")
    draw_operators(result, options.out / "operators.png")
    fused = options.fused or newest(RESULTS, fused=True)
    sections = fused_tables.sections(load(fused, "benchmarks/fused.py") if fused else None)
    beside = grid_tables.merged(options.grid or RESULTS.glob(GRID))
    if beside:
        grid_figures.draw(beside, options.out)
    for name, text in tables(result).items():
        page = options.pages / name
        whole = filled(page.read_text(encoding="utf-8"), text)
        whole = filled(whole, sections[name], fused_tables.BEGIN, fused_tables.END)
        if name == grid_tables.PAGE:
            whole = filled(whole, grid_tables.section(beside), grid_tables.BEGIN, grid_tables.END)
        page.write_text(whole, encoding="utf-8")
    sources = " and ".join(p.name for p in (path, fused) if p)
    print(f"{sources}: drawn in {options.out.name}, tables in {', '.join(PAGES)}")


def newest(folder: Path, *, fused: bool = False) -> Path | None:
    """The result with the latest date in its name: of bare operators, or of fused recurrences."""
    bare = (p for p in folder.glob("*.json") if not p.match(GRID))
    found = sorted(p for p in bare if ("-fused-" in p.name) == fused)
    return found[-1] if found else None


def load(path: Path, script: str = "benchmarks/scan.py") -> dict[str, Any]:
    """A result of a whole run on a GPU."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    stamp = result["stamp"]
    if stamp["dry_run"] or stamp["only"]:
        what = (
            "a dry run, which measures nothing"
            if stamp["dry_run"]
            else f"the rows with {stamp['only']!r} alone"
        )
        raise SystemExit(f"{path.name} is of {what}: run {script} on a GPU, all of it.")
    return result


def draw_fractions(result: dict[str, Any], out: Path) -> None:
    """Affine and MinMax: a panel for each dtype, a group of bars for each shape and operator."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(12, 7.5), layout="constrained")
    stamp = result["stamp"]
    fig.suptitle(f"Fraction of the copy rate, {result['copy']['rate_tb_s']:.2f} TB/s on {stamp['device']}")
    for axes, dtype in zip(fig.subplots(2, 1, sharex=True), SHORT, strict=True):
        rows = select(result, implementation="scanforge", dtype=dtype)
        groups = [
            g
            for g in distinct(rows, "operator", "size", "layout", "dtype")
            if g["operator"] in {"Affine", "MinMax"}
        ]
        draw_bars(axes, result, groups)
        for i, group in enumerate(groups):
            added = one(result, implementation="torch.add", size=group["size"], dtype=dtype)
            if added:
                label = "torch.add" if i == 0 else None
                axes.hlines(added["fraction"], i - 0.45, i + 0.45, color="0.25", lw=1.5, label=label)
        axes.axhline(
            TARGETS[dtype], color="C3", ls=":", lw=1.2, label=f"aim of a forward scan, {TARGETS[dtype]:.2f}"
        )
        names = [f"{g['operator']}\n{shape(g['size'])}\n{g['layout']}" for g in groups]
        axes.set(title=SHORT[dtype], ylim=(0, 1.1), xticks=range(len(groups)), xticklabels=names)
        axes.tick_params("x", labelsize=8)
        axes.legend(loc="upper right", frameon=False, ncols=5, fontsize=8)
    fig.savefig(out, dpi=120)


def draw_operators(result: dict[str, Any], out: Path) -> None:
    """Every operator at the first shape, in float32."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(12, 4), layout="constrained")
    axes = fig.subplots()
    rows = select(
        result, implementation="scanforge", dtype="float32", size=result["rows"][0]["size"], layout="btd"
    )
    groups = distinct(rows, "operator", "size", "layout", "dtype")
    draw_bars(axes, result, groups)
    axes.axhline(1, color="0.25", lw=1)
    top = max([1.0, *(row.get("fraction", 0.0) for row in rows)]) + 0.2  # room for the legend
    axes.set(title=f"Every operator, {shape(result['rows'][0]['size'])} fp32", ylim=(0, top))
    axes.set(
        xticks=range(len(groups)), xticklabels=[g["operator"] for g in groups], ylabel="fraction of copy"
    )
    axes.legend(loc="upper right", frameon=False, ncols=3, fontsize=8)
    fig.savefig(out, dpi=120)


def draw_bars(axes: Any, result: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """A bar for each direction, its value above it."""
    for k, direction in enumerate(DIRECTIONS):
        places = [i + 0.28 * (k - 1) for i in range(len(groups))]
        rows = [one(result, implementation="scanforge", direction=direction, **group) for group in groups]
        heights = [row.get("fraction", 0.0) for row in rows]
        axes.bar(places, heights, 0.27, color=COLOURS[direction], label=direction)
        for place, height in zip(places, heights, strict=True):
            axes.text(place, height + 0.01, f"{height:.2f}" if height else "–", ha="center", fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)


if __name__ == "__main__":
    main()
