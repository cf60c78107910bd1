"""What is aimed at on an H200, and what a result of `grid.py` has of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import bare
from benchmarks.tables import BACKWARD, BOTH, FORWARD, SHORT, shape

Row = dict[str, Any]
OURS, ADD = "scanforge", "torch.add"
BESIDE = {ADD, "copy", "empty kernel"}  # what is timed beside, and is no peer
OF_ADD = {"float32": 0.97, "bfloat16": 0.95}
LAYER, SCALAR = "fla HGRN2 layer", {FORWARD: "fla chunk_simple_gla", BOTH: "fla fused_chunk_simple_gla"}
TIMES_LAYER = {FORWARD: 2.2, BOTH: 1.6}  # in the geometric mean
HOST_MS = 0.060
MOST_GROWTH = 17  # of the time, where time is 16 times as long


@dataclass(frozen=True)
class Aim:
    """A number that was measured, and what it is to be."""

    what: str
    got: float
    sign: str
    wanted: float

    @property
    def met(self) -> bool:
        return self.got >= self.wanted if self.sign == "≥" else self.got <= self.wanted


def aims(result: dict[str, Any]) -> list[Aim]:
    """Every aim for which the result has what it takes."""
    rows = [row for row in result["rows"] if "clock" in row]
    return [aim for find in FINDERS for aim in find(rows)]


def time(row: Row) -> float:
    return row[row["clock"]]["median"]


def said(row: Row) -> str:
    return f"{row['operator']} {shape(row['size'])} {row['layout']} {SHORT[row['dtype']]}, {row['direction']}"


def ours(rows: list[Row], section: str) -> list[Row]:
    return [r for r in rows if r["implementation"] == OURS and r.get("section") == section]


def beside(rows: list[Row], row: Row) -> list[Row]:
    """The other implementations of the same problem in the same direction."""
    same = ("section", "size", "layout", "dtype", "direction")
    others = (r for r in rows if r is not row and all(r.get(n) == row.get(n) for n in same))
    return [r for r in others if r["operator"] == row["operator"] or r["implementation"] == ADD]


def fraction_of(row: Row) -> float | None:
    """The fraction of the copy that a bare operator's row is to reach."""
    size, wide = tuple(row["size"]), row["dtype"] == "float32"
    if row["direction"] not in {FORWARD, BACKWARD}:
        return None
    column = 0 if row["direction"] == FORWARD else 1
    if row["layout"] == "bdt" and size in bare.TURNED:
        return ((0.92, 0.88) if wide else (0.85, 0.75))[column]
    if row["layout"] == "btd" and size in bare.WIDE:
        return ((0.94, 0.93) if wide else (0.85, 0.85))[column]
    return (0.75, 0.70)[column] if row["layout"] == "btd" and size in bare.LONG else None


def bare_aims(rows: list[Row]) -> Iterator[Aim]:
    for row in ours(rows, "bare"):
        wanted = fraction_of(row)
        if wanted is not None:
            yield Aim(f"{said(row)}: of the copy", row["fraction"], "≥", wanted)
        for other in beside(rows, row):
            if other["implementation"] == ADD and row["layout"] == "btd" and tuple(row["size"]) in bare.WIDE:
                of = row["fraction"] / other["fraction"]
                yield Aim(f"{said(row)}: of `torch.add`", of, "≥", OF_ADD[row["dtype"]])


def peer_aims(rows: list[Row]) -> Iterator[Aim]:
    """As quick as the best peer of the same run, where nothing else is asked for."""
    for section in ("bare", "gated"):
        for row in ours(rows, section):
            others = [
                r for r in beside(rows, row) if r["implementation"] not in BESIDE and not r.get("cited")
            ]
            if others:
                best = min(others, key=time)
                yield Aim(f"{said(row)}: over {best['implementation']}", time(best) / time(row), "≥", 1.0)


def matrix_aims(rows: list[Row]) -> Iterator[Aim]:
    gains: dict[str, list[float]] = {FORWARD: [], BOTH: []}
    for row in ours(rows, "matrix"):
        others = beside(rows, row)
        layers = [r for r in others if r["implementation"].startswith(LAYER)]
        if layers and row["direction"] in gains:
            best = min(layers, key=time)
            gains[row["direction"]].append(time(best) / time(row))
            yield Aim(f"{said(row)}: over {best['implementation']}", time(best) / time(row), "≥", 1.1)
            if row["direction"] == BOTH:
                least = min(r["peak_bytes"] for r in layers)
                yield Aim(f"{said(row)}: peak memory over the peer's", row["peak_bytes"] / least, "≤", 1.0)
        for other in others:
            if other["implementation"] == SCALAR.get(row["direction"]):
                yield Aim(f"{said(row)}: over {other['implementation']}", time(other) / time(row), "≥", 1.0)
        if row["direction"] == FORWARD:
            yield Aim(f"{said(row)}: the host's ms", row["host"]["median"], "≤", HOST_MS)
    for direction, found in gains.items():
        if found:
            mean = math.exp(sum(map(math.log, found)) / len(found))
            what = f"HGRN2, {direction}: over the layer, mean of {len(found)} shapes"
            yield Aim(what, mean, "≥", TIMES_LAYER[direction])


def gated_aims(rows: list[Row]) -> Iterator[Aim]:
    for row in ours(rows, "gated"):
        wanted = {FORWARD: 0.80, BACKWARD: 0.75}.get(row["direction"])
        if row["operator"] == "RG-LRU" and wanted:
            yield Aim(f"{said(row)}: of the copy", row["fraction"], "≥", wanted)
        for other in beside(rows, row):
            if other.get("cited"):
                yield Aim(f"{said(row)}: over {other['implementation']}", time(other) / time(row), "≥", 2.0)


def step_aims(rows: list[Row]) -> Iterator[Aim]:
    for row in ours(rows, "step"):
        for other in beside(rows, row):
            over = time(row) / time(other)
            if other["implementation"] == "copy":
                yield Aim(f"{said(row)}: over a copy of state and inputs", over, "≤", 1.1)
            elif other["implementation"] not in BESIDE:
                yield Aim(f"{said(row)}: over {other['implementation']}", over, "≤", 1.0)


def series_aims(rows: list[Row]) -> Iterator[Aim]:
    """Sixteen times as long takes at most seventeen times as long."""
    found = {(r["dtype"], r["direction"], r["size"][1]): r for r in ours(rows, "series")}
    for (dtype, direction, steps), row in found.items():
        longer = found.get((dtype, direction, 16 * steps))
        if longer:
            what = f"{row['operator']} {SHORT[dtype]}, {direction}: {16 * steps} steps over {steps}"
            yield Aim(what, time(longer) / time(row), "≤", MOST_GROWTH)


FINDERS: tuple[Callable[[list[Row]], Iterator[Aim]], ...] = (
    matrix_aims, bare_aims, peer_aims, gated_aims, step_aims, series_aims,
)  # fmt: skip
