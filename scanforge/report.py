"""What `explain` prints: declaration, facts, adjoint, plan, bytes, what is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

import torch

from scanforge import dtypes, laws
from scanforge.adjoint import full_adjoint
from scanforge.declare import Declaration
from scanforge.emit.folding import equations
from scanforge.example import Example
from scanforge.facts import facts
from scanforge.ir.program import Program, Var
from scanforge.ir.scan import TIME, Input, Output, Scan, before, is_outer, load, load_operator
from scanforge.launch import kept_states
from scanforge.pipeline import inside_axes
from scanforge.plan import Held, Tile, held_plan, keep_plan, kernel_plan, plan, tile_plan
from scanforge.recurrence import Fused
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


def explain_text(example: Example, doc: str, dtype: torch.dtype) -> str:
    """The whole explanation as plain text, the same in every process."""
    traced, scan = example.traced, example.traced.scan
    sections = [
        _declaration(example.declared, traced, doc),
        *([_section("element", _program(scan.element))] if isinstance(example.declared, Fused) else []),
        _section("step", _program(scan.operator.apply, {s.name: f"{s.name}'" for s in scan.states})),
        *([_readout(scan)] if isinstance(example.declared, Fused) else []),
        _section("combine", _program(scan.operator.combine)),
        _section("laws", _laws(traced)),
        _section("facts", facts(scan).sentences()),
        _adjoint(scan),
        _plan(traced, example.sizes, dtype),
    ]
    return "\n\n".join(sections)


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _declaration(declared: Declaration | Fused, traced: Traced, doc: str) -> str:
    first = doc.strip().splitlines()[0] if doc.strip() else ""
    title = f"{declared.name}: {first}" if first else declared.name
    if isinstance(declared, Declaration):
        leaves = [f"element {x.name}: {x.kind}, identity {x.identity!r}" for x in declared.leaves]
        states = [f"state   {s.name}: {s.kind}, initial {s.initial!r}" for s in declared.states]
        return _section(title, [*leaves, *states])
    lines = [f"input   {i.name}: {i.kind}[{' '.join(i.axes)}]" for i in declared.inputs]
    for s, (_, real) in zip(declared.states, traced.states, strict=True):
        initial = traced.scan.state(real[0]).initial
        lines.append(f"state   {s.name}: {s.kind}[{' '.join(s.axes)}], initial {initial!r}")
    for o in traced.scan.outputs:
        over = _summed(traced.scan, o, traced.scan.readout.output(o.name))
        lines.append(
            f"output  {o.name}: {o.kind}[{' '.join(o.dims)}]{f', summed over {over}' if over else ''}"
        )
    return _section(title, lines)


def _summed(scan: Scan, output: Output, value: Var) -> str:
    """The axes that an output sums over; the value of a step is first broadcast to batch and time."""
    present = {a for a in scan.axes if is_outer(a)} | set(value.axes)
    return " ".join(a for a in scan.axes if a in present and a not in output.axes)


def _readout(scan: Scan) -> str:
    """The outputs of a step: `h'` is the state after it, `h` before it."""
    names = {s.name: f"{s.name}'" for s in scan.states} | {before(s.name): s.name for s in scan.states}
    return _section("readout", _program(_renamed(scan.readout, names)))


def _renamed(program: Program, names: dict[str, str]) -> Program:
    """The program with other names for its inputs, for people."""
    inputs = tuple(replace(v, name=names.get(v.name, v.name)) for v in program.inputs)
    lines = tuple(replace(x, args=tuple(names.get(a, a) for a in x.args)) for x in program.lines)
    outputs = tuple((n, names.get(v, v)) for n, v in program.outputs)
    return replace(program, inputs=inputs, lines=lines, outputs=outputs)


def _laws(traced: Traced) -> list[str]:
    operators = list(dict.fromkeys(traced.operators))
    several, lines = len(operators) > 1, []
    for text in operators:
        of = f" of {load_operator(text).name}" if several else ""
        lines += [f"{r.law}{of}: {r}" for r in laws.check_laws(text)]
    return lines


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
    sums = {o.name: _summed(back, o, back.readout.output(o.name)) for o in back.outputs}
    summed = {n: f"{n} (summed over {axes})" for n, axes in sums.items() if axes}
    lines.append(f"gradients{f' ({named})' if named else ''}:")
    lines += [f"  {x}" for x in _program(back.readout, summed)]
    lines += [f"gradient of the initial {state}: the last {mu}" for state, mu in derived.initial]
    return _section("backward, derived: a reverse affine scan", lines)


def _plan(traced: Traced, sizes: dict[str, int], dtype: torch.dtype) -> str:
    scan = traced.scan
    chosen = plan(scan, sizes)
    computed = dtypes.computed([dtype])
    shown = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    kept = kept_states(scan, [dtype if o.kind == "float" else torch.int64 for o in scan.outputs], computed)
    held = [s.name for s in scan.states if s.name not in kept]
    back, inside = full_adjoint(scan).scan, inside_axes(traced.text)
    spacing = _spacing(traced.text, sizes, dtype)
    return _section(
        f"plan for {shown} in {dtypes.name(dtype)}",
        [
            f"on the CPU: the reference, {chosen.lowering}: {chosen.why}",
            f"on a GPU: {_kernels(traced.text, sizes, dtype)}",
            f"computed and carried in {dtypes.name(computed)}",
            f"kept for the backward pass: {_kept(held, kept, computed)}; on a GPU the states before every "
            f"{spacing} steps, from which the backward kernel runs forward again",
            f"bytes, each read or written once: forward {_bytes(scan, sizes, dtype, computed)}, "
            f"backward {_bytes(back, sizes, dtype, computed, spacing if inside.axes else 1)}",
        ],
    )


def _kernels(text: str, sizes: dict[str, int], dtype: torch.dtype) -> str:
    """The lowering and the tiles, forward and backward, of the kernels."""
    scan, inside = load(text), inside_axes(text)
    chosen = kernel_plan(scan, sizes, inside=inside.axes)
    cut = chosen.chunks
    steps, lanes = (cut.length, cut.count) if cut else (sizes[TIME], 1)
    lanes *= prod(sizes[a] for a in scan.lanes if a not in inside.axes)
    tiles = []
    for name, fields, down in (
        ("forward", len(scan.inputs), False),
        ("backward", len(scan.inputs) + 1, True),
    ):
        rows = _spacing(text, sizes | {TIME: steps}, dtype) if down else 0
        tile: Tile | Held = tile_plan(steps, lanes, 1, (dtype.itemsize,) * fields, backward=down, rows=rows)
        held = held_plan(inside, sizes, steps, backward=down)
        tile = held if held.axes else tile
        tiles.append(f"{name} R={tile.rows} BD={tile.lanes} NS={tile.stages}")
    chunks = f", {cut.count} chunks of {cut.length} steps" if cut else ""
    who = "a thread holds the axis" if held.axis else "a program holds the axes"
    where = f"; {who} {' '.join(held.axes)}" if held.axes else ""
    return f"Triton, {chosen.plan.lowering}: {chosen.plan.why}{chunks}; tiles {', '.join(tiles)}{where}"


def _spacing(text: str, sizes: dict[str, int], dtype: torch.dtype) -> int:
    """A GPU's forward pass keeps the states before every so many steps."""
    scan, inside = load(text), inside_axes(text)
    fields: list[Input | Output] = [*scan.inputs, *scan.outputs]
    moved = sum(2 * dtype.itemsize * prod(sizes[a] for a in f.axes) for f in fields if f.kind == "float")
    split = kernel_plan(scan, sizes, inside=inside.axes).chunks is not None
    return keep_plan(scan, sizes, inside, moved, "", split=split).spacing


def _kept(held: list[str], kept: list[str], computed: torch.dtype) -> str:
    parts = [f"{', '.join(held)} (the output itself)"] * bool(held)
    parts += [f"{', '.join(kept)} (stored in {dtypes.name(computed)})"] * bool(kept)
    return ", ".join(parts) or "nothing"


def _bytes(
    scan: Scan, sizes: dict[str, int], dtype: torch.dtype, computed: torch.dtype, spacing: int = 1
) -> str:
    """Inputs and outputs, the states before a step every `spacing` steps alone."""
    fields: list[Input | Output] = [*scan.inputs, *scan.outputs]
    total = 0
    for field in fields:
        state = isinstance(field, Input) and field.role == "state_before"
        item = {"float": (computed if state else dtype).itemsize, "int": 8, "bool": 1}[field.kind]
        total += item * prod(sizes[a] for a in field.axes) // (spacing if state else 1)
    return next(f"{total / size:.3g} {unit}" for size, unit in _UNITS if total >= size or size == 1)


_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
