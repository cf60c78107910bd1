"""What `explain` prints: declaration, facts, adjoint, plan, bytes, what is kept."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch

from scanforge import dtypes, laws
from scanforge.adjoint import full_adjoint
from scanforge.declare import Declaration
from scanforge.emit.folding import equations
from scanforge.facts import facts
from scanforge.ir.program import Program
from scanforge.ir.scan import TIME, Input, Output, Scan, before
from scanforge.launch import kept_states
from scanforge.plan import kernel_plan, plan, spacing_of, tile_plan
from scanforge.trace import Traced
from scanforge.validate import Report


def show_report(report: Report) -> None:
    """Print a report of `sf.check` as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report.operator}: {'ok' if report.ok else 'WRONG'}", title_justify="left")
    for heading in ("", "what", "found"):
        table.add_column(heading, overflow="fold")
    for row in report.rows:
        table.add_row("[green]ok[/]" if row.ok else "[bold red]WRONG[/]", row.subject, row.result)
    Console().print(table)


def explain_text(
    declared: Declaration, doc: str, traced: Traced, sizes: dict[str, int], dtype: torch.dtype
) -> str:
    """The whole explanation as plain text, the same in every process."""
    scan = traced.scan
    sections = [
        _declaration(declared, doc),
        _section("step", _program(scan.operator.apply, {s.name: f"{s.name}'" for s in scan.states})),
        _section("combine", _program(scan.operator.combine)),
        _section("laws", [f"{r.law}: {r}" for r in laws.check_laws(traced.operator)]),
        _section("facts", facts(scan).sentences()),
        _adjoint(scan),
        _plan(scan, sizes, dtype),
    ]
    return "\n\n".join(sections)


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _declaration(declared: Declaration, doc: str) -> str:
    leaves = [f"element {x.name}: {x.kind}, identity {x.identity!r}" for x in declared.leaves]
    states = [f"state   {s.name}: {s.kind}, initial {s.initial!r}" for s in declared.states]
    first = doc.strip().splitlines()[0] if doc.strip() else ""
    return _section(f"{declared.name}: {first}" if first else declared.name, [*leaves, *states])


def _program(program: Program, rename: dict[str, str] | None = None) -> list[str]:
    rows = equations(program, rename)
    wide = max((len(f"{n} = {e}") for n, e, _ in rows), default=0)
    return [f"{f'{n} = {e}':<{wide}}  {w}".rstrip() for n, e, w in rows]


def _adjoint(scan: Scan) -> str:
    derived = full_adjoint(scan)
    if not derived.initial:
        return _section("backward", ["no state is a float: there is no gradient to carry"])
    back = derived.scan
    later = {s.name: f"{s.name} (t)" for s in back.states}
    shown = {before(s.name): f"{s.name} (t+1)" for s in back.states}
    lines = [
        f"{mu}: the cotangent of {state}, carried backwards from the final state's"
        for state, mu in derived.initial
    ]
    lines += ["element, from the inputs, the state before the step and the outputs' cotangents:"]
    lines += [f"  {x}" for x in _program(back.element)]
    lines += ["step:", *(f"  {x}" for x in _program(back.operator.apply, later))]
    read = frozenset().union(*back.readout.dependencies().values())
    named = ", ".join(f"{n} is {text}" for n, text in shown.items() if n in read)
    lines += [f"gradients{f' ({named})' if named else ''}:", *(f"  {x}" for x in _program(back.readout))]
    lines += [f"gradient of the initial {state}: the last {mu}" for state, mu in derived.initial]
    return _section("backward, derived: a reverse affine scan", lines)


def _plan(scan: Scan, sizes: dict[str, int], dtype: torch.dtype) -> str:
    chosen = plan(scan, sizes)
    computed = dtypes.computed([dtype])
    shown = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    kept = kept_states(scan, [dtype if o.kind == "float" else torch.int64 for o in scan.outputs], computed)
    held = [s.name for s in scan.states if s.name not in kept]
    back = full_adjoint(scan).scan
    return _section(
        f"plan for {shown} in {dtypes.name(dtype)}",
        [
            f"on the CPU: the reference, {chosen.lowering}: {chosen.why}",
            f"on a GPU: {_kernels(scan, sizes, dtype)}",
            f"computed and carried in {dtypes.name(computed)}",
            f"kept for the backward pass: {_kept(held, kept, computed)}; on a GPU the states before every "
            f"{spacing_of(scan, sizes[TIME])} steps, from which the backward kernel runs each tile again",
            f"bytes, each read or written once: forward {_bytes(scan, sizes, dtype, computed)}, "
            f"backward {_bytes(back, sizes, dtype, computed)}",
        ],
    )


def _kernels(scan: Scan, sizes: dict[str, int], dtype: torch.dtype) -> str:
    """The lowering and the tiles, forward and backward, of the kernels."""
    chosen = kernel_plan(scan, sizes)
    cut = chosen.chunks
    steps, lanes = (cut.length, cut.count) if cut else (sizes[TIME], 1)
    lanes *= prod(sizes[a] for a in scan.lanes)
    tiles = []
    for name, fields, down in (
        ("forward", len(scan.inputs), False),
        ("backward", len(scan.inputs) + 1, True),
    ):
        rows = spacing_of(scan, steps) if down else 0
        tile = tile_plan(steps, lanes, 1, (dtype.itemsize,) * fields, backward=down, rows=rows)
        tiles.append(f"{name} R={tile.rows} BD={tile.lanes} NS={tile.stages}")
    chunks = f", {cut.count} chunks of {cut.length} steps" if cut else ""
    return f"Triton, {chosen.plan.lowering}: {chosen.plan.why}{chunks}; tiles {', '.join(tiles)}"


def _kept(held: list[str], kept: list[str], computed: torch.dtype) -> str:
    parts = [f"{', '.join(held)} (the output itself)"] * bool(held)
    parts += [f"{', '.join(kept)} (stored in {dtypes.name(computed)})"] * bool(kept)
    return ", ".join(parts) or "nothing"


def _bytes(scan: Scan, sizes: dict[str, int], dtype: torch.dtype, computed: torch.dtype) -> str:
    fields: list[Input | Output] = [*scan.inputs, *scan.outputs]
    total = 0
    for field in fields:
        wide = computed if getattr(field, "role", "") == "state_before" else dtype
        item = {"float": wide.itemsize, "int": 8, "bool": 1}[field.kind]
        total += item * prod(sizes[a] for a in field.axes)
    return next(f"{total / size:.3g} {unit}" for size, unit in _UNITS if total >= size or size == 1)


_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
