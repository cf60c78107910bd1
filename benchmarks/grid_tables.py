"""Tables from results of `benchmarks/grid.py` for the page on performance, and the rows behind them.

A run may hold some of the cases: of each row, the newest result that has it counts. A page without any such
result has nothing between its markers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.aims import ADD, BESIDE, OURS, aims, beside, time
from benchmarks.compare import key
from benchmarks.tables import BACKWARD, BOTH, FORWARD, SHORT, distinct, shape

Row = dict[str, Any]
BEGIN, END = "<!-- grid:begin -->", "<!-- grid:end -->"
PAGE = "docs/performance.md"
WAYS = (FORWARD, BACKWARD, BOTH)

EXPLANATION = """\
`python benchmarks/grid.py` measures this, with the peers that are installed beside (`--list` names its \
cases, `--only` takes some). All implementations of a row run in one process on the same tensors and are \
timed in turns with a copy of 1 GiB; a percentage is of the rate of that copy. Before it has a time, each \
one's output and gradients are compared with a computation in float64, which for scanforge has the bounds \
of the tests, for peers wider ones, since a peer may scan in bf16; *error* is the largest. A time is of \
one call that finds L2 cold, the median of twenty; for matrices, whose kernels are not bound by bytes, of \
replays of a CUDA graph, on both sides. JAX has streams of its own: its times are of calls back to back by \
the clock on the wall, L2 warm. *Floor* is the time that the least bytes take at the copy's pace, or the \
products at the pace of a large product of bf16 matrices in the same run, or the exponentials at 16 a \
clock and processor, whichever is longest, over the time. Least products of a matrix state: two \
multiplications with an addition for each of its entries and steps forward, five more backward. *Peak* is \
what a call holds at most beside its inputs, results included. HGRN2's peers: the layer of \
flash-linear-attention makes keys and decays by torch operations around `chunk_gla`, with its lower bound \
in bf16, as a model in bf16 has it, or in fp32; with *gates given* that is not counted. Its autotuner \
chose among all of its configurations, each timed for 10 ms. *Own run*: it could not be installed beside, \
and is scaled by the ratio of the copies."""


def merged(paths: Iterable[Path]) -> dict[str, Any] | None:
    """One result of several, the later by name first; nothing of none."""
    rows: dict[Any, Row] = {}
    stamps: dict[str, dict[str, Any]] = {}
    for path in sorted(paths):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["stamp"]["dry_run"]:
            raise SystemExit(
                f"{path.name} is of a dry run, which measures nothing: run benchmarks/grid.py on a GPU."
            )
        stamps[path.name] = result["stamp"] | {"copy_tb_s": result["copy"]["rate_tb_s"]}
        rows |= {key(row): row | {"file": path.name} for row in result["rows"]}
    return {"rows": list(rows.values()), "stamps": stamps} if stamps else None


def section(result: dict[str, Any] | None) -> str:
    """The text between the markers."""
    if result is None:
        return ""
    parts = ["", "## Beside other libraries", ""]
    for title, name, figure, table in PARTS:
        rows = [row for row in result["rows"] if row.get("section") == name and timed(row)]
        if rows:
            drawn = [f"![{figure}](../benchmarks/results/{figure}.png)", ""] if figure else []
            parts += [f"### {title}", "", *drawn, *table(rows), "", *captions(rows, result["stamps"]), ""]
    parts += [*absent(result["rows"]), "", *aim_table(result), "", EXPLANATION, ""]
    return "\n".join(parts)


def timed(row: Row) -> bool:
    return "clock" in row


def captions(rows: list[Row], stamps: dict[str, dict[str, Any]]) -> list[str]:
    """Where and when, a line for each run that the rows are of."""
    found = []
    for name in dict.fromkeys(row["file"] for row in rows):
        stamp = stamps[name]
        peers = ", ".join(f"{n} {v}" for n, v in stamp.get("peers", {}).items() if n != "torch")
        where = (
            f"{stamp['device']}, driver {stamp['driver']}, torch {stamp['torch']}, Triton {stamp['triton']}"
        )
        when = f"{stamp['date'][:10]}, commit {stamp['commit']}; the copy: {stamp['copy_tb_s']:.2f} TB/s"
        found.append(f"{where}, {peers}; {when}.")
    return found


def milliseconds(row: Row) -> str:
    if not row:
        return "–"
    ms = time(row)
    return f"{1e3 * ms:.3g} µs" if ms < 1 else f"{ms:.3g} ms"


def cell(row: Row) -> str:
    """Time and percentage of the copy."""
    return (
        f"{milliseconds(row)}, {100 * row['fraction']:.0f} %"
        if row and "fraction" in row
        else milliseconds(row)
    )


def worst(rows: Iterable[Row]) -> str:
    errors = [e for row in rows if row and row.get("error") for e in row["error"].values()]
    return f"{max(errors):.0e}" if errors else "–"


def by_way(rows: list[Row], **wanted: Any) -> list[Row]:
    """The rows of forward, backward, and both; an empty one where there is none."""
    some = [row for row in rows if all(row[n] == x for n, x in wanted.items())]
    return [next((row for row in some if row["direction"] == way), {}) for way in WAYS]


def pair(rows: list[Row], show: Callable[[Row], str]) -> str:
    """Of forward, and of both."""
    return " / ".join(show(row) if row else "–" for row in (rows[0], rows[2]))


def matrix_table(rows: list[Row]) -> list[str]:
    head = (
        "operator",
        "b, t, h, k, v",
        "",
        *WAYS,
        "TFLOP/s",
        "GB/s",
        "floor",
        "peak, GiB",
        "host, µs",
        "error",
    )
    lines = [_line(head), _line(["---"] * len(head))]
    for at in distinct(rows, "operator", "size", "implementation"):
        found = by_way(rows, **at)
        lines.append(_line([
            at["operator"], shape(at["size"])[1:-1], at["implementation"], *map(milliseconds, found),
            pair(found, lambda r: f"{r['tflop_s']:.0f}"), pair(found, lambda r: f"{r['gb_s']:.0f}"),
            pair(found, floor), pair(found, lambda r: f"{r['peak_bytes'] / 2**30:.2f}"),
            pair(found, lambda r: f"{1e3 * r['host']['median']:.0f}"), worst(found),
        ]))  # fmt: skip
    return lines


def floor(row: Row) -> str:
    return f"{100 * row['of_floor']:.0f} % of {row['bound']}"


def bare_table(rows: list[Row]) -> list[str]:
    """scanforge in every direction, beside an addition and the quickest peer."""
    head = (
        "operator",
        "b, t, d",
        "layout",
        "dtype",
        *WAYS,
        "`torch.add`",
        "best peer, forward",
        "both",
        "error",
    )
    lines = [_line(head), _line(["---"] * len(head))]
    for at in distinct(rows, "operator", "size", "layout", "dtype"):
        ours = by_way(rows, implementation=OURS, **at)
        if not any(ours):
            continue
        added = next((r for r in rows if r["implementation"] == ADD and same_shape(r, at)), {})
        peers = [best(rows, row) for row in (ours[0], ours[2])]
        name = [at["operator"], shape(at["size"])[1:-1], at["layout"], SHORT[at["dtype"]]]
        lines.append(_line([*name, *map(cell, ours), cell(added), *peers, worst(ours)]))
    return lines


def same_shape(row: Row, at: dict[str, Any]) -> bool:
    return all(row[n] == at[n] for n in ("size", "layout", "dtype"))


def best(rows: list[Row], row: Row) -> str:
    """The quickest of the other implementations."""
    others = [r for r in beside(rows, row) if r["implementation"] not in BESIDE] if row else []
    if not others:
        return "–"
    found = min(others, key=time)
    return f"{cell(found)}: {found['implementation']}"


def gated_table(rows: list[Row]) -> list[str]:
    head = ("layer", "b, t, d, n", "", *WAYS, "floor", "peak, GiB", "error")
    lines = [_line(head), _line(["---"] * len(head))]
    for at in distinct(rows, "operator", "size", "implementation"):
        if at["implementation"] == ADD:
            continue
        found = by_way(rows, **at)
        held = pair(found, lambda r: f"{r['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in r else "–")
        name = [at["operator"], shape(at["size"])[1:-1], at["implementation"]]
        lines.append(_line([*name, *map(cell, found), pair(found, floor), held, worst(found)]))
    return lines


def step_table(rows: list[Row]) -> list[str]:
    head = ("step", "state", "", "time", "error")
    lines = [_line(head), _line(["---"] * len(head))]
    for row in sorted(rows, key=lambda r: (r["operator"], -r["size"][0], time(r))):
        took = f"{1e3 * time(row):.2f} µs"
        lines.append(
            _line([row["operator"], shape(row["size"])[1:-1], row["implementation"], took, worst([row])])
        )
    return lines


def series_table(rows: list[Row]) -> list[str]:
    """A line for each length: scanforge's directions, and the quickest peer."""
    head = ("operator", "dtype", "t", *WAYS, "best peer, forward")
    lines = [_line(head), _line(["---"] * len(head))]
    for at in distinct(rows, "operator", "dtype", "size"):
        ours = by_way(rows, implementation=OURS, **at)
        if any(ours):
            name = [at["operator"], SHORT[at["dtype"]], str(at["size"][1])]
            lines.append(_line([*name, *map(cell, ours), best(rows, ours[0])]))
    return lines


def absent(rows: list[Row]) -> list[str]:
    """What has no time, and why, once for each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        reason = row.get("failed") or row.get("unavailable")
        if reason and reason != "left out of this run":
            where = f"{row['operator']} {shape(row['size'])} {SHORT.get(row['dtype'], row['dtype'])}"
            found.setdefault((row["implementation"], reason[:160]), []).append(f"{where}, {row['direction']}")
    if not found:
        return []
    lines = ["| no time | why | where |", "| --- | --- | --- |"]
    for (name, reason), places in found.items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        lines.append(_line([name, reason, f"{places[0]}{more}"]))
    return lines


def aim_table(result: dict[str, Any]) -> list[str]:
    """Missed aims one by one, and how many are met."""
    found = aims(result)
    missed = [aim for aim in found if not aim.met]
    lines = [f"{len(found) - len(missed)} of {len(found)} aims are met.", ""]
    if missed:
        lines += ["| missed | wanted | measured |", "| --- | --- | --- |"]
        lines += [_line([aim.what, f"{aim.sign} {aim.wanted:g}", f"{aim.got:.3g}"]) for aim in missed]
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


# title, section, figure, table
PARTS: tuple[tuple[str, str, str, Callable[[list[Row]], list[str]]], ...] = (
    ("Matrices", "matrix", "matrix", matrix_table),
    ("Operators", "bare", "bare", bare_table),
    ("Layers", "gated", "", gated_table),
    ("Steps", "step", "", step_table),
    ("Time against length", "series", "series", series_table),
)
