"""What `explain` prints: declaration, facts, adjoint, plan, bytes, what is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scanforge import dtypes, laws
from scanforge.adjoint import full_adjoint
from scanforge.chunked_form import matrix_sentence
from scanforge.declare import Declaration
from scanforge.emit.folding import equations
from scanforge.example import Example
from scanforge.facts import facts
from scanforge.ir.program import Program, Var
from scanforge.ir.scan import Output, Scan, before, is_outer, load_operator
from scanforge.plan import Held
from scanforge.planned import Pass, Planned, readable
from scanforge.recurrence import Fused
from scanforge.tile import Tile
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


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an explanation. Its name says what it is of, its title and lines are for people."""

    name: str
    title: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {line}" for line in self.lines)])


def sections(example: Example, doc: str, plan: Planned) -> tuple[Section, ...]:
    """The whole explanation, the same in every process."""
    traced, scan = example.traced, example.traced.scan
    fused = isinstance(example.declared, Fused)
    return (
        _declaration(example.declared, traced, doc),
        *([_section("element", _program(scan.element))] if fused else []),
        _section("step", _program(scan.operator.apply, {s.name: f"{s.name}'" for s in scan.states})),
        *([_readout(scan)] if fused else []),
        _section("combine", _program(scan.operator.combine)),
        _section("laws", _laws(traced)),
        _section("facts", [*facts(scan).sentences(), *matrix_sentence(traced.text)]),
        _adjoint(scan),
        _plan(plan),
    )


def _section(name: str, lines: Iterable[str], title: str = "") -> Section:
    return Section(name, title or name, tuple(lines))


def _declaration(declared: Declaration | Fused, traced: Traced, doc: str) -> Section:
    first = doc.strip().splitlines()[0] if doc.strip() else ""
    title = f"{declared.name}: {first}" if first else declared.name
    if isinstance(declared, Declaration):
        leaves = [f"element {x.name}: {x.kind}, identity {x.identity!r}" for x in declared.leaves]
        states = [f"state   {s.name}: {s.kind}, initial {s.initial!r}" for s in declared.states]
        return _section("declaration", [*leaves, *states], title)
    lines = [f"input   {i.name}: {i.kind}[{' '.join(i.axes)}]" for i in declared.inputs]
    for s, (_, real) in zip(declared.states, traced.states, strict=True):
        initial = traced.scan.state(real[0]).initial
        lines.append(f"state   {s.name}: {s.kind}[{' '.join(s.axes)}], initial {initial!r}")
    for o in traced.scan.outputs:
        over = _summed(traced.scan, o, traced.scan.readout.output(o.name))
        lines.append(
            f"output  {o.name}: {o.kind}[{' '.join(o.dims)}]{f', summed over {over}' if over else ''}"
        )
    return _section("declaration", lines, title)


def _summed(scan: Scan, output: Output, value: Var) -> str:
    """The axes that an output sums over; the value of a step is first broadcast to batch and time."""
    present = {a for a in scan.axes if is_outer(a)} | set(value.axes)
    return " ".join(a for a in scan.axes if a in present and a not in output.axes)


def _readout(scan: Scan) -> Section:
    """The outputs of a step: `h'` is the state after it, `h` before it."""
    names = {s.name: f"{s.name}'" for s in scan.states} | {before(s.name): s.name for s in scan.states}
    return _section("readout", _program(renamed(scan.readout, names)))


def renamed(program: Program, names: dict[str, str]) -> Program:
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


def _adjoint(scan: Scan) -> Section:
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
    return _section("backward", lines, "backward, derived: a reverse affine scan")


def _plan(p: Planned) -> Section:
    shown = ", ".join(f"{axis}={size}" for axis, size in p.sizes.items())
    return _section(
        "plan",
        [
            f"on the CPU: the reference, {p.reference.lowering}: {p.reference.why}",
            f"on a GPU: {_kernels(p)}; shipped default",
            *(f"{way}: {found}: {found.sentence()}" for way, found in p.tuned),
            *([f"no products over chunks there: {p.not_chunked}"] * bool(p.not_chunked)),
            *(f"{way} kernels: {_launches(p.passes[way])}" for way in p.reads_and_writes),
            f"computed and carried in {dtypes.name(p.computed)}",
            f"kept for the backward pass: {_kept(p)}",
            f"bytes, each read or written once: {_bytes(p)}",
        ],
        f"plan for {shown} in {dtypes.name(p.dtype)}",
    )


def _bytes(p: Planned) -> str:
    return ", ".join(f"{way} {readable(p.bytes(way))}" for way in p.reads_and_writes)


def _kernels(p: Planned) -> str:
    """The lowering and the tiles, forward and backward, of the kernels."""
    both = [(name, t) for name, t in (("forward", p.forward), ("backward", p.backward)) if t]
    if not both:
        return f"Triton, {p.kernel.lowering}: {p.kernel.why}"
    if p.kernel.lowering == "chunked":
        tile = both[0][1]
        groups = f", in {p.chunks.count} groups of chunks at one time" if p.chunks else ""
        return (
            f"Triton, chunked: {p.kernel.why}; chunks of {tile.rows} steps, a walk over them in programs of "
            f"{tile.lanes} {p.lanes[-1]}, NS={tile.stages}{groups}"
        )
    tiles = ", ".join(f"{name} R={t.rows} BD={t.lanes} NS={t.stages}{_groups(t)}" for name, t in both)
    chunks = f", {p.chunks.count} chunks of {p.chunks.length} steps" if p.chunks else ""
    who = "a thread holds the axis" if p.in_thread else "a program holds the axes"
    where = f"; {who} {' '.join(p.held)}" if p.held else ""
    return f"Triton, {p.kernel.lowering}: {p.kernel.why}{chunks}; tiles {tiles}{where}"


def _launches(found: Pass) -> str:
    """The kernels of a pass, and what is only between them."""
    between = sum(m.size for m in found.between)
    more = f"; between them {readable(between)}, written and read" if len(found.kernels) > 1 else ""
    return f"{', '.join(map(str, found.kernels)) or 'nothing is launched'}{more}"


def _kept_on_gpu(p: Planned) -> str:
    if p.kernel.lowering == "chunked":
        return "the initial state alone, from which a walk over chunks makes those before each again"
    return f"the states before every {p.spacing} steps, from which the backward kernel runs forward again"


def _groups(tile: Tile | Held) -> str:
    if not isinstance(tile, Tile) or tile.groups == 1:
        return ""
    return f" G={tile.groups}{' in relay' * tile.relay}{f' S={tile.members}' * (tile.members > 1)}"


def _kept(p: Planned) -> str:
    parts = [f"{', '.join(p.outputs_kept)} (the output itself)"] * bool(p.outputs_kept)
    parts += [f"{', '.join(p.stored)} (stored in {dtypes.name(p.computed)})"] * bool(p.stored)
    return f"{', '.join(parts)}; on a GPU {_kept_on_gpu(p)}" if parts else "nothing, there is no gradient"
