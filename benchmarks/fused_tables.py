"""Tables from a result of `benchmarks/fused.py`, for the README and the page on performance.

A page without such a result has nothing between its markers.
"""

from __future__ import annotations

from typing import Any

from benchmarks.tables import BACKWARD, BOTH, DIRECTIONS, FORWARD, PAGES, caption, cell, shape

FUSED, BARE = "scanforge", "torch gates, sf.scan(sf.Affine)"
LOW, EMPTY, COPY = 'scanforge, memory="low"', "empty kernel", "copy"
BEGIN, END = "<!-- fused:begin -->", "<!-- fused:end -->"
# mamba-ssm 2.3.2's CUDA kernel on an H200 of its own run, which copied at this rate: milliseconds, TB/s
PEER, PEER_TIMES, PEER_COPY = "mamba-ssm's CUDA kernel", {FORWARD: 0.592, BOTH: 2.898}, 4.193
COLUMNS = (*DIRECTIONS, BOTH)

EXPLANATION = """\
`python benchmarks/fused.py --out FILE.json` measures this. RG-LRU has x, r, i (b, t, d) in bf16 and Λ (d) \
in fp32. Mamba is the selective SSM with u, dt, z (b, t, d) and B, C (b, t, n) in bf16, softplus(dt + \
bias), A = -exp(A_log), D and the gate silu(z), with parameters in fp32. Times are as above: one call that \
finds L2 cold. A percentage is of a layer's own least bytes: inputs and output once; backward inputs, the \
output's cotangent and gradients once. With gates in torch the same bytes are counted; they are computed \
in bf16, which is quickest, and rounds a gate near 1. mamba-ssm could not be installed beside: its row is \
from a run of its own on an H200, scaled by the ratio of the copies. *error* is the largest relative \
distance from a loop in float64, of outputs and of gradients, over some channels of all sequences and all \
channels of one, on the tensors that are timed. *Peak memory* is what a forward and a backward pass hold \
at most, beyond inputs, output and the gradients of both, over these.

A step is one of 128 in a CUDA graph, over eight sets of inputs and states in turn; the state in fp32 is \
written in place. The copy moves as many bytes as the state, read and written, and the inputs."""


def find(result: dict[str, Any], operator: str, name: str, direction: str, batch: int = 0) -> dict[str, Any]:
    """The row of an implementation if it has a time, or nothing."""
    wanted = {"operator": operator, "implementation": name, "direction": direction}
    rows = (row for row in result["rows"] if all(row[k] == v for k, v in wanted.items()))
    timed = (row for row in rows if "failed" not in row and batch in {0, row["size"][0]})
    return next(timed, {})


def sections(result: dict[str, Any] | None) -> dict[str, str]:
    """The text between each page's markers."""
    if result is None:
        return dict.fromkeys(PAGES, "")
    full = ["", "## Fused recurrences", "", caption(result), "", *layer_table(result), ""]
    full += [*step_table(result), "", *aims(result), "", EXPLANATION, ""]
    return {
        PAGES[0]: "\n".join(["", *small_table(result), "", caption(result), ""]),
        PAGES[1]: "\n".join(full),
    }


def peer(result: dict[str, Any], direction: str) -> float:
    """mamba-ssm's milliseconds on a device that copies at this run's rate; NaN without one."""
    if direction not in PEER_TIMES or not result["copy"]:
        return float("nan")
    return PEER_TIMES[direction] * PEER_COPY / result["copy"]["rate_tb_s"]


def _sizes(result: dict[str, Any]) -> tuple[list[int], int]:
    """b, t, d of the layers, and the states that Mamba has a channel."""
    sizes = {r["operator"]: r["size"] for r in result["rows"]}
    *size, states = sizes.get("Mamba", [0])
    return size or sizes.get("RG-LRU", []), states


def layers(states: int) -> list[tuple[str, str, str]]:
    """What a table calls a layer, its operator, its implementation."""
    return [
        ("RG-LRU", "RG-LRU", FUSED),
        ("RG-LRU, gates in torch around `sf.scan(sf.Affine)`", "RG-LRU", BARE),
        (f"Mamba, {states} states a channel", "Mamba", FUSED),
        ('the same, `memory="low"`', "Mamba", LOW),
    ]


def layer_table(result: dict[str, Any]) -> list[str]:
    """Every direction of every layer."""
    size, states = _sizes(result)
    head = f"| {shape(size)}, bf16 | {' | '.join(COLUMNS)} | peak memory | error |"
    lines = [head, f"| --- |{' --- |' * (len(COLUMNS) + 2)}"]
    for label, operator, name in layers(states):
        rows = [find(result, operator, name, d) for d in COLUMNS]
        peak = f"{100 * rows[-1]['peak']['excess']:.0f} %" if rows[-1] else "–"
        errors = next((r["error"] for r in reversed(rows) if r), {})
        shown = ", ".join(f"{e:.0e}" for e in errors.values()) or "–"
        lines.append(f"| {' | '.join([label, *map(cell, rows), peak, shown])} |")
    theirs = [_time(peer(result, d)) for d in COLUMNS]
    return [*lines, f"| {' | '.join([f'{PEER}, scaled', *theirs, '–', '–'])} |"]


def small_table(result: dict[str, Any]) -> list[str]:
    """The README's: forward, and forward and backward."""
    size, states = _sizes(result)
    lines = [f"| {shape(size)}, bf16 | forward | forward and backward |", "| --- | --- | --- |"]
    for label, operator, name in layers(states):
        if name != LOW:
            cells = [cell(find(result, operator, name, d)) for d in (FORWARD, BOTH)]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    theirs = [_time(peer(result, d)) for d in (FORWARD, BOTH)]
    return [*lines, f"| {PEER}, from its own run, scaled by the copy | {' | '.join(theirs)} |"]


def step_table(result: dict[str, Any]) -> list[str]:
    """One step, and what stands beside it."""
    lines = ["| a step of Mamba, in a graph | scanforge | empty kernel | copy of state and inputs |"]
    lines.append("| --- | --- | --- | --- |")
    for batch in dict.fromkeys(r["size"][0] for r in result["rows"] if r["operator"] == "Mamba step"):
        rows = [find(result, "Mamba step", name, "step", batch) for name in (FUSED, EMPTY, COPY)]
        cells = [f"{1e3 * r['replayed']['median']:.2f} µs" if r else "–" for r in rows]
        lines.append(f"| {batch} sequence{'s' * (batch > 1)} | {' | '.join(cells)} |")
    return lines


def aims(result: dict[str, Any]) -> list[str]:
    """What was aimed at: the measured number, the aim, and whether it is met."""
    lines = ["| aim | wanted | measured | |", "| --- | --- | --- | --- |"]
    for what, got, sign, aim in _aims(result):
        met = got >= aim if sign == "≥" else got <= aim
        shown, verdict = ("–", "not measured") if got != got else (f"{got:.2f}", "met" if met else "missed")
        lines.append(f"| {what} | {sign} {aim:.2f} | {shown} | {verdict} |")
    return lines


def _aims(result: dict[str, Any]) -> list[tuple[str, float, str, float]]:
    def ms(operator: str, name: str, direction: str, batch: int = 0) -> float:
        row = find(result, operator, name, direction, batch)
        return row.get("cold", row.get("replayed"))["median"] if row else float("nan")

    def fraction(operator: str, direction: str) -> float:
        return find(result, operator, FUSED, direction).get("fraction", float("nan"))

    def excess(name: str) -> float:
        return find(result, "Mamba", name, BOTH).get("peak", {}).get("excess", float("nan"))

    gates = {d: ms("RG-LRU", BARE, d) / ms("RG-LRU", FUSED, d) for d in (FORWARD, BOTH)}
    mamba = {d: ms("Mamba", FUSED, d) for d in (FORWARD, BOTH)}
    step = {b: ms("Mamba step", FUSED, "step", b) for b in (1, 64)}
    return [
        ("RG-LRU forward, of the copy rate", fraction("RG-LRU", FORWARD), "≥", 0.75),
        ("RG-LRU backward, of the copy rate", fraction("RG-LRU", BACKWARD), "≥", 0.70),
        ("RG-LRU forward, times as fast as with gates in torch", gates[FORWARD], "≥", 3.0),
        ("RG-LRU forward and backward, times as fast", gates[BOTH], "≥", 2.0),
        ("Mamba forward, over mamba-ssm's time", mamba[FORWARD] / peer(result, FORWARD), "≤", 1.0),
        ("Mamba forward and backward, over mamba-ssm's time", mamba[BOTH] / peer(result, BOTH), "≤", 1.0),
        ("Mamba's peak memory beyond inputs, output, gradients", excess(FUSED), "≤", 0.80),
        ('the same with `memory="low"`', excess(LOW), "≤", 0.25),
        ('time with `memory="low"` over that without', ms("Mamba", LOW, BOTH) / mamba[BOTH], "≤", 4 / 3),
        (
            "a step of 1 sequence, over an empty kernel",
            step[1] / ms("Mamba step", EMPTY, "step", 1),
            "≤",
            1.5,
        ),
        (
            "a step of 64, over a copy of state and inputs",
            step[64] / ms("Mamba step", COPY, "step", 64),
            "≤",
            1.3,
        ),
    ]


def _time(milliseconds: float) -> str:
    if milliseconds != milliseconds:
        return "–"
    return f"{1e3 * milliseconds:.0f} µs" if milliseconds < 1 else f"{milliseconds:.3g} ms"
