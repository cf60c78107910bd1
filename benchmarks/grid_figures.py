"""Figures from results of `grid.py`: matrices beside peers, fractions by shape, time against length."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.aims import ADD, BESIDE, OURS, Row, time
from benchmarks.grid_tables import timed
from benchmarks.tables import BACKWARD, BOTH, FORWARD, SHORT, distinct, shape

MARKS = "osD^vPX*"
COLOURS = {OURS: "C1", ADD: "0.6"}
OTHERS = ("C0", "C2", "C3", "C4", "C5", "C6", "C8", "C9")  # of peers, in order


def draw(result: dict[str, Any], folder: Path) -> list[str]:
    """The names of the figures that the result has rows for."""
    made = []
    for name, section, panels in (
        ("matrix", "matrix", draw_matrix),
        ("bare", "bare", draw_bare),
        ("series", "series", draw_series),
    ):
        rows = [row for row in result["rows"] if row.get("section") == section and timed(row)]
        if rows:
            panels(rows, folder / f"{name}.png")
            made.append(name)
    return made


def draw_matrix(rows: list[Row], out: Path) -> None:
    """Times of HGRN2 and of a scalar decay, a group of bars a shape, a panel a direction."""
    from matplotlib.figure import Figure

    operators = list(dict.fromkeys(row["operator"] for row in rows))
    fig = Figure(figsize=(13, 3.6 * len(operators)), layout="constrained")
    grid = fig.subplots(len(operators), 2, squeeze=False)
    for operator, line in zip(operators, grid, strict=True):
        for direction, axes in zip((FORWARD, BOTH), line, strict=True):
            some = [r for r in rows if r["operator"] == operator and r["direction"] == direction]
            bars(axes, some, lambda row: time(row), shape_of)
            axes.set(title=f"{operator}, {direction}", ylabel="ms, from a CUDA graph")
    fig.savefig(out, dpi=120)


def draw_bare(rows: list[Row], out: Path) -> None:
    """Fractions of the copy by shape, a panel for each dtype and direction."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(14, 13), layout="constrained")
    places = [(dtype, way) for dtype in SHORT for way in (FORWARD, BACKWARD)]
    for (dtype, way), axes in zip(places, fig.subplots(len(places), 1), strict=True):
        some = [r for r in rows if r["dtype"] == dtype and r["direction"] == way and "fraction" in r]
        bars(
            axes,
            some,
            lambda row: row["fraction"],
            lambda row: f"{row['operator']} {row['layout']}\n{shape_of(row)}",
        )
        axes.axhline(1, color="0.25", lw=0.8)
        axes.set(title=f"{SHORT[dtype]}, {way}", ylabel="fraction of copy", ylim=(0, 1.1))
    fig.savefig(out, dpi=120)


def draw_series(rows: list[Row], out: Path) -> None:
    """Time against the number of steps, the lanes the same; dashed: in proportion, from the longest."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(12, 4.5), layout="constrained")
    for dtype, axes in zip(SHORT, fig.subplots(1, 2, sharey=True), strict=True):
        some = [r for r in rows if r["dtype"] == dtype and r["implementation"] not in BESIDE]
        for mark, at in zip(MARKS * 4, distinct(some, "implementation", "direction"), strict=False):
            line = sorted(
                (r for r in some if all(r[n] == x for n, x in at.items())), key=lambda r: r["size"][1]
            )
            steps, times = [r["size"][1] for r in line], [time(r) for r in line]
            label = f"{at['implementation']}, {at['direction']}"
            axes.loglog(
                steps, times, marker=mark, ms=4, lw=1.2 if at["implementation"] == OURS else 0.7, label=label
            )
        ours = [r for r in some if r["implementation"] == OURS and r["direction"] == FORWARD]
        if ours:
            last = max(ours, key=lambda r: r["size"][1])
            lengths = sorted(r["size"][1] for r in ours)
            floor = [time(last) * n / last["size"][1] for n in lengths]
            axes.loglog(lengths, floor, color="0.5", ls="--", lw=0.8, label="in proportion")
        axes.set(title=f"Affine, {SHORT[dtype]}", xlabel="steps", ylabel="ms")
        axes.grid(alpha=0.25)
        axes.legend(fontsize=7, frameon=False)
    fig.savefig(out, dpi=120)


def shape_of(row: Row) -> str:
    return shape(row["size"])[1:-1].replace(" ", "")


def bars(axes: Any, rows: list[Row], height: Any, label: Any) -> None:
    """A group for each label, a bar for each implementation that has it."""
    names = sorted({r["implementation"] for r in rows}, key=lambda n: (n != OURS, n == ADD, n))
    free = cycle(OTHERS)
    groups = list(dict.fromkeys(map(label, rows)))
    width = 0.85 / max(1, len(names))
    for k, name in enumerate(names):
        some = [(groups.index(label(r)), height(r)) for r in rows if r["implementation"] == name]
        places = [i + width * (k - (len(names) - 1) / 2) for i, _ in some]
        axes.bar(places, [h for _, h in some], width, label=name, color=COLOURS.get(name) or next(free))
    axes.set(xticks=range(len(groups)), xticklabels=groups)
    crowded = len(groups) > 8
    axes.tick_params("x", labelsize=6 if crowded else 7, rotation=90 if crowded else 0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    if names:
        axes.legend(fontsize=7, frameon=False, ncols=4)
