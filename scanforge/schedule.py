"""ir.Scan -> the programs of one time step, as kernels run them.

step_program    element map, apply and readout in one, equal lines shared
settled         the same, where sums over axes that programs share out are left to where outputs are stored
stages          the same, cut by what each line depends on: once a call, once a row, once an entry of the
                axis that a thread holds, and after the sums over it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.program import Line, Program, Var
from scanforge.ir.scan import TIME, Scan, before, is_outer
from scanforge.ir.value import Value
from scanforge.prune import drop_dead, drop_guards, tidy


def step_program(scan: Scan) -> Program:
    """Reads the inputs and the states before the step; gives `next_<state>` and the outputs.

    What stands before the cut at the scan is visible after it, so a line that the element map and the
    readout both need is computed once.
    """
    builder = Builder(f"{scan.name}.step", scan.axes, where="")
    values = {i.name: builder.input(i.name, i.kind, scan.order(i.axes)) for i in scan.inputs}
    states = {
        before(s.name): builder.input(before(s.name), s.kind, scan.order(("t", *s.axes))) for s in scan.states
    }
    values |= states
    leaves = builder.inline(scan.element, {v.name: values[v.name] for v in scan.element.inputs})
    previous = {s.name: states[before(s.name)] for s in scan.states}
    after = builder.inline(scan.operator.apply, leaves | previous)
    read = values | after
    outputs = builder.inline(scan.readout, {v.name: read[v.name] for v in scan.readout.inputs})
    steps = {next_state(name): value for name, value in after.items()}
    return check_program(tidy(drop_guards(builder.finish(steps | outputs))))


def states_only(scan: Scan) -> Program:
    """The step without its outputs: what runs forward again."""
    program = step_program(scan)
    wanted = {next_state(s.name) for s in scan.states}
    return drop_dead(replace(program, outputs=tuple(o for o in program.outputs if o[0] in wanted)))


def next_state(state: str) -> str:
    """How a step program names the state after the step."""
    return f"next_{state}"


class NotLinearError(Exception):
    """A sum over these axes is needed within the step: not only linear lines lead from it to outputs."""

    def __init__(self, axes: Iterable[str]) -> None:
        super().__init__(" ".join(sorted(axes)))
        self.axes = frozenset(axes)


def first(axis: str) -> str:
    """The condition, in a settled program, of being the first entry along an axis."""
    return f"first_{axis}"


def settled(scan: Scan, program: Program, within: frozenset[str]) -> Program:
    """The step whose outputs need only be added up over the axes that they lack.

    Sums over the axes `within` are computed in the step. A value that is to be summed over another axis stays
    as it is, summand by summand, and lines that are linear in it work on the summands; what has no such sum
    but is added to one counts once, at the first entry. Raises NotLinearError where that is no use.
    """
    return _Settling(scan, program, within).result()


_THROUGH = frozenset({"neg", "to_float"})
Summand = tuple[Value, frozenset[str]]  # with the axes that it is to be summed over


class _Settling:
    def __init__(self, scan: Scan, program: Program, within: frozenset[str]) -> None:
        self.scan, self.program, self.within = scan, program, within
        self.builder = Builder(program.name, program.axes, where="")
        self.found: dict[str, Summand] = {
            v.name: (self.builder.input(v.name, v.kind, v.axes), frozenset()) for v in program.inputs
        }

    def result(self) -> Program:
        for line in self.program.lines:
            self.found[line.var.name] = self.line(line)
        axes = {o.name: o.axes for o in self.scan.outputs}
        outputs: dict[str, Value] = {}
        for name, variable in self.program.outputs:
            value, pending = self.found[variable]
            if name not in axes:
                if pending:
                    raise NotLinearError(pending)
                outputs[name] = value
            else:
                outputs[name] = self.output(value, pending, axes[name])
        return check_program(tidy(self.builder.finish(outputs)))

    def output(self, value: Value, pending: frozenset[str], kept: tuple[str, ...]) -> Value:
        """Sum over what is within; what the value lacks counts once, but for time and batch."""
        if wrong := pending & set(kept):
            raise NotLinearError(wrong)
        lacking = [a for a in self.scan.lanes if a not in kept and not is_outer(a)]
        inside = tuple(a for a in lacking if a in self.within and a in value.var.axes)
        value = self.builder.sum(value, inside) if inside else value
        rest = [a for a in lacking if a not in self.within and a not in value.var.axes and a not in pending]
        return self.once(value, rest)

    def once(self, value: Value, axes: Iterable[str]) -> Value:
        """The value at the first entry along the axes, 0 elsewhere."""
        for axis in sorted(axes):
            known = self.found.get(first(axis))
            if known is None:
                known = (self.builder.input(first(axis), "bool", (axis,)), frozenset())
                self.found[first(axis)] = known
            value = known[0].call("where", value, 0.0)
        return value

    def line(self, line: Line) -> Summand:
        if line.value is not None:
            return self.builder.const(line.value, line.var.kind), frozenset()
        args = [self.found[a] for a in line.args]
        if line.op == "sum":
            value, pending = args[0]
            inside = tuple(a for a in line.over if a in self.within)
            value = self.builder.sum(value, inside) if inside else value
            return value, pending | (set(line.over) - self.within)
        together = frozenset().union(*(p for _, p in args))
        values = [v for v, _ in args]
        if together:
            values = self.linear(line.op, args, together)
        return self.builder.call(line.op, *values), together

    def linear(self, op: str, args: Sequence[Summand], together: frozenset[str]) -> list[Value]:
        """The operands of a line that is linear in its summands."""
        (value, pending), *rest = args
        if op in _THROUGH or (op == "div" and not rest[0][1]):
            return [v for v, _ in args]
        if op == "mul" and not (pending and rest[0][1]):
            return [v for v, _ in args]
        if op in {"add", "sub"}:
            return [self.share(v, p, together) for v, p in args]
        if op == "where" and not pending:
            return [value, *(self.share(v, p, together) for v, p in rest)]
        raise NotLinearError(together)

    def share(self, value: Value, pending: frozenset[str], together: frozenset[str]) -> Value:
        """An operand beside a summand: counted once where it is no summand itself."""
        return value if value.number == 0 else self.once(value, together - pending)


def whole_axes(scan: Scan, program: Program, within: frozenset[str]) -> frozenset[str]:
    """The axes that must lie within a step, these included, since a sum over them is not linear."""
    while True:
        try:
            settled(scan, program, within)
        except NotLinearError as error:
            within |= error.axes
        else:
            return within


def together(program: Program, other: Program) -> Program:
    """Both steps in one, on the same inputs: a line that both need is computed once."""
    builder = Builder(program.name, program.axes, where="")
    every = dict.fromkeys([*program.inputs, *other.inputs])  # in order, so that the text is always the same
    inputs = {v.name: builder.input(v.name, v.kind, v.axes) for v in every}
    made = [builder.inline(p, {v.name: inputs[v.name] for v in p.inputs}) for p in (program, other)]
    return check_program(tidy(builder.finish(made[0] | made[1])))


PARTS = ("once", "once_each", "ahead", "each", "behind")


@dataclass(frozen=True, slots=True)
class Stages:
    """A step in parts. A part reads inputs, states before the step, and variables that earlier parts return.

    once, once_each    of inputs without time: before the loop, for a lane and for an entry of the held axis
    ahead              of a row, without the held axis
    each               of a row and an entry of the held axis
    behind             of a row, after the sums over the held axis
    """

    once: Program
    once_each: Program
    ahead: Program
    each: Program
    behind: Program
    sums: tuple[tuple[str, str], ...]  # an input of `behind` -> its summand, which `each` returns

    def part(self, name: str) -> Program:
        """A part by name."""
        found: Program = getattr(self, name)
        return found

    def each_for(self, outputs: Iterable[str]) -> Stages:
        """The same with only these outputs of `each`."""
        wanted = set(outputs)
        kept = tuple(o for o in self.each.outputs if o[0] in wanted)
        live = drop_dead(replace(self.each, outputs=kept))
        read = {*(a for x in live.lines for a in x.args), *(v for _, v in kept)}
        return replace(self, each=replace(live, inputs=tuple(v for v in live.inputs if v.name in read)))


def handed_on(variable: str) -> str:
    """How a part names a variable that later parts read: no output is named so."""
    return f"-> {variable}"


def stages(program: Program, held: str = "") -> Stages | None:
    """The step in parts; None if an entry of the held axis depends on a sum over it.

    Without a held axis `each` is what depends on a state before the step, and `behind` is empty.
    """
    places = _Places(program, held)
    if places.tangled:
        return None
    outputs: dict[str, list[tuple[str, str]]] = {p: [] for p in PARTS}
    for name, variable in program.outputs:
        outputs[places.of_output(variable)].append((name, variable))
    made: dict[str, Program] = {}
    needed = set(places.sums.values())
    for part in reversed(PARTS):
        lines = tuple(x for x in program.lines if places.of.get(x.var.name) == part)
        own = {x.var.name for x in lines}
        own |= {
            s for s in places.sums.values() if part == "each" and s not in places.of
        }  # an input, as it was
        handed = [(handed_on(v), v) for v in sorted(needed & own)]
        made[part] = part_of(program, part, lines, [*outputs[part], *handed])
        needed |= {v.name for v in made[part].inputs}
    return Stages(**made, sums=tuple(places.sums.items()))


class _Places:
    """The part of every line."""

    def __init__(self, program: Program, held: str) -> None:
        self.held, self.of, self.tangled = held, dict[str, str](), False
        self.sums: dict[str, str] = {}
        self.variables = program.variables()
        self.numbers = program.constants()
        timed = {v.name for v in program.inputs if TIME in v.axes}
        fed = {v.name for v in program.inputs if v.name.startswith(before(""))}  # by a state before the step
        behind: set[str] = set()
        for line in program.lines:
            name, args = line.var.name, set(line.args)
            if line.op == "const":
                continue
            if line.op == "sum" and held in line.over:
                self.sums[name] = line.args[0]
                self.tangled |= line.args[0] in behind  # a sum of what stands after the sums
                behind.add(name)
                timed.add(name)
                continue
            if args & timed:
                timed.add(name)
            if args & fed:
                fed.add(name)
            if args & behind:
                behind.add(name)
                self.tangled |= held in line.var.axes
            self.of[name] = self.place(line.var, name in timed, name in fed, name in behind)

    def place(self, var: Var, timed: bool, fed: bool, behind: bool) -> str:
        if behind:
            return "behind"
        on = bool(self.held) and self.held in var.axes
        if not timed:
            return "once_each" if on else "once"
        return "each" if on or (fed and not self.held) else "ahead"

    def of_output(self, variable: str) -> str:
        """Outputs are of a row, even if their value is not."""
        if variable in self.sums:
            return "behind"
        place = self.of.get(variable)
        if place is None:  # an input or a number
            return "each" if self.held in self.variables[variable].axes or not self.held else "ahead"
        return {"once": "ahead", "once_each": "each"}.get(place, place)


def part_of(
    program: Program, part: str, lines: Sequence[Line], outputs: Sequence[tuple[str, str]]
) -> Program:
    """Some lines as a program: what they do not assign is an input, numbers are repeated."""
    own = {x.var.name for x in lines}
    variables, numbers = program.variables(), program.constants()
    read = dict.fromkeys([*(a for x in lines for a in x.args), *(v for _, v in outputs)])
    constants = tuple(x for x in program.lines if x.var.name in read and x.op == "const")
    inputs = tuple(v for n, v in variables.items() if n in read and n not in own and n not in numbers)
    name = f"{program.name.removesuffix('.step')}.{part}"
    return check_program(Program(name, program.axes, inputs, (*constants, *lines), tuple(outputs)))
