"""Tables from a result of `benchmarks/scan.py`, for the README and the page on performance."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

FORWARD, TRAINING, BACKWARD, BOTH = "forward", "forward, training", "backward", "forward and backward"
DIRECTIONS = (FORWARD, TRAINING, BACKWARD)
IN_ROUNDS = "torch, log2(t) rounds"
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
PAGES = ("README.md", "docs/performance.md")
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"
NOT_MEASURED = "Not measured yet on a GPU: `make bench` on one fills this in."


def select(result: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    """The rows with these values, in order."""
    return [row for row in result["rows"] if all(row[name] == value for name, value in wanted.items())]


def one(result: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    """The row with these values if it has a time, or nothing."""
    return next((row for row in select(result, **wanted) if "fraction" in row), {})


def distinct(rows: Iterable[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The values of these columns that occur, once each, in order."""
    found: list[dict[str, Any]] = []
    for row in rows:
        values = {name: row[name] for name in names}
        if values not in found:
            found.append(values)
    return found


def tables(result: dict[str, Any] | None) -> dict[str, str]:
    """The text between each page's markers."""
    if result is None:
        return dict.fromkeys(PAGES, NOT_MEASURED)
    full = [f"![{name}](../benchmarks/results/{name}.png)" for name in ("fractions", "operators")] + [
        "",
        caption(result),
        *big_table(result),
        "",
        *rounds_table(result),
        "",
        *first_call(result),
    ]
    return {PAGES[0]: "\n".join([*small_table(result), "", caption(result)]), PAGES[1]: "\n".join(full)}


def filled(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with this text between its markers."""
    found = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    assert found.search(page), f"there are no markers {begin} and {end}"
    return found.sub(lambda _: f"{begin}\n{text}\n{end}" if text else f"{begin}\n{end}", page, count=1)


def caption(result: dict[str, Any]) -> str:
    """Where and when, and what 100 % is."""
    stamp, copy = result["stamp"], result["copy"]
    return (
        f"{stamp['device']}, driver {stamp['driver']}, torch {stamp['torch']}, Triton {stamp['triton']}, "
        f"{stamp['date'][:10]}. 100 % is a copy of 1 GiB: {copy['rate_tb_s']:.2f} TB/s, read and written."
    )


def small_table(result: dict[str, Any]) -> list[str]:
    """The README's: the two operators at the first shape, an addition, and PyTorch's form."""
    size, layout = result["rows"][0]["size"], "btd"
    lines = [f"| {shape(size)} | forward | forward and backward |", "| --- | --- | --- |"]
    for dtype in SHORT:
        at = {"size": size, "layout": layout, "dtype": dtype}
        for operator in ("Affine", "MinMax"):
            mine = {"implementation": "scanforge", "operator": operator, **at}
            rows = [one(result, **mine, direction=d) for d in DIRECTIONS]
            lines.append(f"| {operator}, {SHORT[dtype]} | {cell(rows[0])} | {cell(joined(*rows[1:]))} |")
        added = one(result, implementation="torch.add", **at)
        lines.append(f"| `torch.add` of as much, {SHORT[dtype]} | {cell(added)} | |")
        rounds = [one(result, implementation=IN_ROUNDS, direction=d, **at) for d in (FORWARD, BOTH)]
        lines.append(f"| MinMax in PyTorch, {SHORT[dtype]} | {' | '.join(cell(r) for r in rounds)} |")
    return lines


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two passes one after the other."""
    if not (first and second):
        return {}
    times = [row["cold"]["median"] for row in (first, second)]
    fraction = sum(f * t for f, t in zip((first["fraction"], second["fraction"]), times, strict=True)) / sum(
        times
    )
    return {"cold": {"median": sum(times)}, "fraction": fraction}


def cell(row: dict[str, Any]) -> str:
    """Time and fraction of the copy."""
    if not row:
        return "–"
    median = row.get("cold", row.get("called"))["median"]
    shown = f"{1e3 * median:.0f} µs" if median < 1 else f"{median:.3g} ms"
    return f"{shown}, {100 * row['fraction']:.0f} %" if row["fraction"] >= 0.01 else f"{shown}, < 1 %"


def shape(size: list[int]) -> str:
    return f"({', '.join(map(str, size))})"


def big_table(result: dict[str, Any]) -> list[str]:
    """Every row: the directions side by side, and an addition of the same shape."""
    lines = [
        "",
        "| operator | b, t, d | layout | dtype | forward | forward, training | backward | called | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    timed = [r for r in result["rows"] if r["implementation"] in {"scanforge", "torch.add"}]
    for what in distinct(timed, "implementation", "operator", "size", "layout", "dtype"):
        rows = [one(result, **what, direction=d) for d in DIRECTIONS]
        name = what["operator"] if what["implementation"] == "scanforge" else "`torch.add`"
        called = " / ".join(f"{1e3 * r['called']['median']:.0f}" for r in rows if r)
        cells = [name, shape(what["size"])[1:-1], what["layout"], SHORT[what["dtype"]], *map(cell, rows)]
        failed = [r["failed"] for r in select(result, **what) if "failed" in r]
        cells += [
            f"{called} µs" if called else "–",
            error(rows) if not failed else f"failed: {failed[0][:60]}",
        ]
        lines.append(f"| {' | '.join(c.replace('|', '/') for c in cells)} |")
    return lines


def error(rows: list[dict[str, Any]]) -> str:
    """Of values and of gradients, relative to the loop in float64."""
    found = next((r["error"] for r in rows if r and r["error"]), None)
    return f"{found['forward']:.0e}, {found['gradient']:.0e}" if found else "–"


def rounds_table(result: dict[str, Any]) -> list[str]:
    """MinMax against its form in PyTorch, both as called from Python."""
    lines = [
        "| MinMax as called, forward / both | scanforge | torch, log2(t) rounds |",
        "| --- | --- | --- |",
    ]
    for what in distinct(select(result, implementation=IN_ROUNDS), "size", "layout", "dtype"):
        rounds = [one(result, implementation=IN_ROUNDS, direction=d, **what) for d in (FORWARD, BOTH)]
        mine = [
            one(result, implementation="scanforge", operator="MinMax", direction=d, **what)
            for d in DIRECTIONS
        ]
        ours = [called(mine[0]), called(mine[1]) + called(mine[2])]
        theirs = [called(r) for r in rounds]
        cells = [" / ".join(f"{t:.3g} ms" if t == t else "–" for t in times) for times in (ours, theirs)]
        lines.append(f"| {shape(what['size'])} {SHORT[what['dtype']]} | {' | '.join(cells)} |")
    return lines


def called(row: dict[str, Any]) -> float:
    return row["called"]["median"] if row else float("nan")


def first_call(result: dict[str, Any]) -> list[str]:
    """Seconds of a new operator's first calls."""
    found = {name: s for name, s in result["first_call"].items() if isinstance(s, dict)}
    if not found:
        return []
    stages = list(next(iter(found.values())))
    lines = [f"| first call, seconds | {' | '.join(stages)} |", f"| --- |{' --- |' * len(stages)}"]
    return lines + [
        f"| {name} caches on disk | {' | '.join(f'{s[stage]:.2f}' for stage in stages)} |"
        for name, s in found.items()
    ]
