"""Program -> Program: what nobody reads is dropped, and what is written twice is written once."""

from __future__ import annotations

from dataclasses import replace

from scanforge.ir.program import Line, Program, fresh
from scanforge.ir.scan import Scan


def tidy(program: Program) -> Program:
    """Equal lines are shared, factors 1 vanish, dead lines dropped, the rest numbered. No value changes."""
    return renumber(drop_dead(share(program)))


def share(program: Program) -> Program:
    """Each right-hand side is computed once; x * 1 is x and where(c, x, x) is x, bit for bit."""
    names: dict[str, str] = {}
    known: dict[tuple[object, ...], str] = {}
    numbers: dict[str, object] = {}
    kept: list[Line] = []
    axes = {v.name: v.axes for v in program.variables().values()}
    for line in program.lines:
        args = tuple(names.get(a, a) for a in line.args)
        same = _identity(line, args, numbers, axes)
        key = (*_canonical(line.op, args), repr(line.value), line.over, line.var.kind)
        name = same if same is not None else known.get(key)
        if name is None:
            known[key] = line.var.name
            kept.append(replace(line, args=args))
            if line.value is not None:
                numbers[line.var.name] = line.value
        else:
            names[line.var.name] = name
    outputs = tuple((n, names.get(v, v)) for n, v in program.outputs)
    return replace(program, lines=tuple(kept), outputs=outputs)


_COMMUTES = frozenset({"add", "mul", "eq", "ne", "and", "or", "xor"})  # min and max of 0 and -0 do not
_MIRROR = {"gt": "lt", "ge": "le"}


def _canonical(op: str, args: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """One spelling for right-hand sides that are equal bit for bit: b + a is a + b, b > a is a < b."""
    if op in _MIRROR:
        return _MIRROR[op], args[::-1]
    return op, tuple(sorted(args)) if op in _COMMUTES else args


def _identity(
    line: Line, args: tuple[str, ...], numbers: dict[str, object], axes: dict[str, tuple[str, ...]]
) -> str | None:
    """The operand that this line is equal to, if its structure says so."""
    if line.op == "mul":
        for one, other in ((0, 1), (1, 0)):
            if numbers.get(args[one]) == 1 and axes[args[other]] == line.var.axes:
                return args[other]
    if line.op == "where" and args[1] == args[2] and axes[args[1]] == line.var.axes:
        return args[1]
    return None


def drop_guards(program: Program) -> Program:
    """The program as it is evaluated: a guard is its operand, and matters to derivatives alone."""
    names: dict[str, str] = {}
    kept: list[Line] = []
    for line in program.lines:
        args = tuple(names.get(a, a) for a in line.args)
        if line.op == "guard":
            names[line.var.name] = args[1]
        else:
            kept.append(replace(line, args=args))
    return replace(
        program, lines=tuple(kept), outputs=tuple((n, names.get(v, v)) for n, v in program.outputs)
    )


def drop_dead(program: Program) -> Program:
    """The lines that some output depends on."""
    live = {variable for _, variable in program.outputs}
    kept: list[Line] = []
    for line in reversed(program.lines):
        if line.var.name in live:
            kept.append(line)
            live.update(line.args)
    return replace(program, lines=tuple(reversed(kept)))


def renumber(program: Program) -> Program:
    """Lines named v0, v1, ... in order, constants k0, k1, ..."""
    names = {v.name: v.name for v in program.inputs}
    counts = {"v": 0, "k": 0}
    lines = []
    for line in program.lines:
        letter = "k" if line.op == "const" else "v"
        names[line.var.name] = fresh(f"{letter}{counts[letter]}", names.values())
        counts[letter] += 1
        var = replace(line.var, name=names[line.var.name])
        lines.append(replace(line, var=var, args=tuple(names[a] for a in line.args)))
    outputs = tuple((n, names[v]) for n, v in program.outputs)
    return replace(program, lines=tuple(lines), outputs=outputs)


def drop_unread_inputs(scan: Scan) -> Scan:
    """The scan without inputs that nothing reads, but for those that an axis has its size from."""
    reads = _reads(scan.element) | _reads(scan.readout)
    known = {a for s in scan.states for a in s.axes}
    known |= {a for i in scan.inputs if i.name in reads for a in i.axes}
    kept = set(reads)
    for i in scan.inputs:
        if i.name not in kept and not set(i.axes) <= known:
            kept.add(i.name)
            known.update(i.axes)
    gone = {i.name for i in scan.inputs} - kept
    return replace(
        scan,
        inputs=tuple(i for i in scan.inputs if i.name in kept),
        element=_without(scan.element, gone),
        readout=_without(scan.readout, gone),
    )


def _reads(program: Program) -> frozenset[str]:
    return frozenset().union(*program.dependencies().values())


def _without(program: Program, gone: set[str]) -> Program:
    return replace(program, inputs=tuple(v for v in program.inputs if v.name not in gone))
