"""What got worse between two results of a benchmark.

    python -m benchmarks.compare OLD.json NEW.json [--worse 0.05]

Rows are matched by implementation, operator, shape, layout, dtype and direction. One of scanforge's own is
worse if its time, relative to a copy beside it, grew by more than `--worse`, and even its shortest is longer
than the median was; if it fails, or is missing, where it was timed before; or if it misses an aim that it had
reached. Peers are shown where they got slower, and are no regression. Exits with 1 if anything is worse.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout runs, installed or not

from benchmarks.aims import OURS, aims
from benchmarks.tables import SHORT, shape

Row = dict[str, Any]
Key = tuple[Any, ...]
COLUMNS = ("implementation", "operator", "size", "layout", "dtype", "direction")
CLOCKS = ("cold", "replayed", "streamed", "called")


@dataclass(frozen=True)
class Finding:
    """What changed for the worse."""

    where: str
    before: str
    after: str
    what: str
    ours: bool

    def line(self) -> str:
        cells = (self.where, self.before, self.after, self.what if self.ours else f"{self.what} (a peer)")
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--worse", type=float, default=0.05, help="by how much a time may grow; 0.05 if not given"
    )
    options = parser.parse_args()
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (options.old, options.new))
    both = len(timed(old).keys() & timed(new).keys())
    print(f"{options.old.name} and {options.new.name}: {both} rows have times in both")
    found = compare(old, new, options.worse)
    if found:
        print("| row | before | after | |", "| --- | --- | --- | --- |", *(f.line() for f in found), sep="\n")
    worse = sum(finding.ours for finding in found)
    print(f"{worse} worse" if worse else "nothing is worse")
    return 1 if worse else 0


def compare(old: dict[str, Any], new: dict[str, Any], worse: float) -> list[Finding]:
    """What got worse, ours first."""
    rows = {key(row): row for row in new["rows"]}
    found = []
    for at, row in timed(old).items():
        other = rows.get(at)
        if other is not None and clock_of(row) in other:
            found += slower(old, row, new, other, worse)
        else:
            found += gone(row, other, new)
    before = {aim.what: aim for aim in aims(old) if aim.met}
    for aim in aims(new):
        if aim.what in before and not aim.met:
            shown = [f"{x:.3f}" for x in (before[aim.what].got, aim.got)]
            found.append(Finding(aim.what, *shown, f"misses its aim, {aim.sign} {aim.wanted:.2f}", ours=True))
    return sorted(found, key=lambda finding: not finding.ours)


def timed(result: dict[str, Any]) -> dict[Key, Row]:
    return {key(row): row for row in result["rows"] if clock_of(row)}


def key(row: Row) -> Key:
    """What a row is of. A length of a series may be a shape of another section, and is another row."""
    values = (row.get(name, "") for name in COLUMNS)
    return (row.get("section") == "series", *(tuple(x) if isinstance(x, list) else x for x in values))


def clock_of(row: Row) -> str:
    """The clock whose time is compared; empty for a row without times."""
    return row.get("clock") or next((name for name in CLOCKS if name in row), "")


def said(row: Row) -> str:
    dtype = SHORT.get(row["dtype"], row["dtype"])
    what = f"{row['implementation']}: {row['operator']} {shape(row['size'])} {row['layout']} {dtype}"
    return f"{what}, {row['direction']}"


def is_ours(row: Row) -> bool:
    return row["implementation"].split(",")[0] == OURS


def slower(old: dict[str, Any], row: Row, new: dict[str, Any], other: Row, worse: float) -> list[Finding]:
    """A time that grew, measured in copies of its own run: another machine's pace is no change."""
    clock = clock_of(row)
    paces = [r.get("copy_tb_s") or result["copy"]["rate_tb_s"] for r, result in ((row, old), (other, new))]
    then, now = (r[clock]["median"] * pace for r, pace in zip((row, other), paces, strict=True))
    if now <= then * (1 + worse) or other[clock]["min"] * paces[1] <= then:
        return []
    shown = [f"{1e3 * r[clock]['median']:.1f} µs" for r in (row, other)]
    return [Finding(said(row), *shown, f"{100 * (now / then - 1):.0f} % slower", is_ours(row))]


def gone(row: Row, other: Row | None, new: dict[str, Any]) -> list[Finding]:
    """Why a row that was timed has no time now; nothing where it was not asked for."""
    if other is None:
        same = [r for r in new["rows"] if key({**r, "direction": row["direction"]}) == key(row)]
        other = next((r for r in same if r["direction"] == "all"), None)
    if other is None:
        asked_for = not new["stamp"].get("only")
        return [Finding(said(row), "timed", "–", "is missing", is_ours(row))] if asked_for else []
    reason = other.get("failed") or other.get("unavailable") or "no time"
    return [
        Finding(
            said(row), "timed", reason[:120], "fails" if "failed" in other else "was not run", is_ours(row)
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
