"""A Program: single assignments, one primitive each, in the order written.

Program := name, axes order, inputs: Var*, lines: Line*, outputs: (name, variable)*
Line    := name = op(args...) : kind[axes]    op is a primitive, `const` (value) or `sum` (over)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from scanforge.ir.primitives import primitive

Number = float | int | bool


@dataclass(frozen=True, slots=True)
class Var:
    """A typed name: kind is float, int or bool; axes are letters in the program's order."""

    name: str
    kind: str
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}[{' '.join(self.axes)}]"


@dataclass(frozen=True, slots=True)
class Line:
    """One assignment. `where` is the user's file:line and takes no part in equality."""

    var: Var
    op: str
    args: tuple[str, ...] = ()
    value: Number | None = None  # of a const
    over: tuple[str, ...] = ()  # axes of a sum
    where: str = field(default="", compare=False)

    def expression(self) -> str:
        """The right-hand side as a person writes it."""
        if self.op == "const":
            return repr(self.value)
        if self.op == "sum":
            return f"sum({self.args[0]}, {' '.join(self.over)!r})"
        return primitive(self.op).text.format(*self.args)


@dataclass(frozen=True, slots=True)
class Program:
    """A pure function from named inputs to named outputs."""

    name: str
    axes: tuple[str, ...]
    inputs: tuple[Var, ...]
    lines: tuple[Line, ...]
    outputs: tuple[tuple[str, str], ...]

    def variables(self) -> dict[str, Var]:
        """Every name with its type."""
        return {v.name: v for v in self.inputs} | {line.var.name: line.var for line in self.lines}

    def output(self, name: str) -> Var:
        """The variable that an output names."""
        return self.variables()[dict(self.outputs)[name]]

    def dependencies(self) -> dict[str, frozenset[str]]:
        """For each output, the inputs that it reads through any chain of lines."""
        reads: dict[str, frozenset[str]] = {v.name: frozenset([v.name]) for v in self.inputs}
        for line in self.lines:
            reads[line.var.name] = frozenset().union(*(reads[a] for a in line.args))
        return {name: reads[variable] for name, variable in self.outputs}

    def constants(self) -> dict[str, Number]:
        """The names that hold a number."""
        return {line.var.name: line.value for line in self.lines if line.value is not None}

    def text(self, *, where: bool = True) -> str:
        """One line per assignment, constants written in place."""
        return "\n".join(self._text(where))

    def _text(self, where: bool) -> Iterator[str]:
        yield f"{self.name}({', '.join(map(str, self.inputs))})"
        numbers = {name: repr(value) for name, value in self.constants().items()}
        for line in self.lines:
            if line.op != "const":
                shown = Line(line.var, line.op, tuple(numbers.get(a, a) for a in line.args), over=line.over)
                note = f"  # {line.where}" if where and line.where else ""
                yield f"    {line.var} = {shown.expression()}{note}"
        yield "    return " + ", ".join(f"{n}={numbers.get(v, v)}" for n, v in self.outputs)

    def __str__(self) -> str:
        return self.text()


def fresh(name: str, taken: Iterable[str] | Mapping[str, object]) -> str:
    """`name`, with underscores until it is free."""
    used = set(taken)
    while name in used:
        name += "_"
    return name
