"""Reverse accumulation over assignments: cotangents of a Program's outputs -> cotangents of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import mul, or_

from scanforge.ir.builder import Builder
from scanforge.ir.primitives import TABLE
from scanforge.ir.program import Line, Program
from scanforge.ir.scan import is_outer
from scanforge.ir.value import Value

Cotangents = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Gate:
    """What one selection does to a cotangent: 0 where it closes, half at a tie, else all of it."""

    condition: Value
    closes: bool  # whether it does so where the condition holds
    tie: Value | None = None

    def closed(self) -> Value:
        """Where it closes."""
        return self.condition if self.closes else ~self.condition

    def factor(self) -> Value:
        """0, 1/2 or 1. A NaN in the comparison opens it, and is no tie, as in torch."""
        opened = (~self.condition if self.closes else self.condition).call("to_float")
        return opened if self.tie is None else opened - self.half()

    def half(self) -> Value:
        """1/2 at its tie, else 0."""
        assert self.tie is not None
        half: Value = 0.5 * self.tie.call("to_float")
        return half


@dataclass(frozen=True, slots=True)
class Gated:
    """A cotangent that selections let through.

    A chain of minimum, maximum and where keeps its gates apart from the cotangent: one product and one
    selection then stand between the cotangent before and after the chain, however long it is. The gates are
    multiplied as numbers, which a GPU does faster than it combines conditions; the last product is `gated`,
    since 0 times an infinite cotangent is not 0. A lone gate selects by its own condition.
    """

    base: Value
    gates: tuple[Gate, ...] = ()

    def through(self, gate: Gate) -> Gated:
        """Past one more selection."""
        return Gated(self.base, (*self.gates, gate))

    def value(self) -> Value:
        """The cotangent as one value."""
        if not self.gates:
            return self.base
        if all(gate.tie is None for gate in self.gates):
            return self._selected(self.base)
        if len(self.gates) == 1 and self.base.number is None:
            return self._selected((1.0 - self.gates[0].half()) * self.base)
        factor = reduce(mul, (gate.factor() for gate in self.gates))
        if self.base.number == 1.0:
            return factor
        gated: Value = factor.call("gated", self.base)
        return gated

    def _selected(self, value: Value) -> Value:
        """The value where every gate is open, selected by the conditions themselves."""
        first = self.gates[0]
        if len(self.gates) == 1 and not first.closes:
            return first.condition.call("where", value, 0.0)
        return reduce(or_, (gate.closed() for gate in self.gates)).call("where", 0.0, value)


def pull_back(
    builder: Builder,
    program: Program,
    values: Mapping[str, Value],
    seeds: Mapping[str, Value],
    wanted: Iterable[str],
) -> Cotangents:
    """The cotangents of the wanted inputs; a name is absent where the cotangent is zero by structure.

    `values` holds every variable of the program, as `Builder.replay` returned it; `seeds` the cotangents
    of outputs, absent ones zero. A cotangent may lack axes of its variable: it is then constant along them.
    """
    relevant = _reachable(program, wanted)
    found: dict[str, Gated] = {}
    for output, variable in program.outputs:
        if output in seeds and variable in relevant:
            _add(found, variable, Gated(seeds[output]))
    for line in reversed(program.lines):
        if line.var.name in found and line.var.kind == "float":
            with builder.at(line.where):
                for name, cotangent in _line(builder, line, values, found[line.var.name]):
                    if name in relevant:
                        _add(found, name, cotangent)
    return {name: found[name].value() for name in wanted if name in found}


def _line(builder: Builder, line: Line, values: Mapping[str, Value], g: Gated) -> Iterable[tuple[str, Gated]]:
    if line.op == "sum":  # its vjp is a broadcast, which named axes do by themselves, or again times a size
        times = tuple(a for a in line.over if a not in values[line.args[0]].var.axes)
        yield line.args[0], Gated(builder.sum(g.value(), times)) if times else g
        return
    row = TABLE.get(line.op)
    if row is None or row.vjp is None:
        return
    args = [values[a] for a in line.args]
    if row.gate is not None:
        passed = [gate and g.through(_gate(*gate)) for gate in row.gate(*args)]
    else:
        pulled = row.vjp(g.value(), values[line.var.name], *args)
        passed = [None if cotangent is None else Gated(cotangent) for cotangent in pulled]
    for name, arg, cotangent in zip(line.args, args, passed, strict=True):
        if cotangent is None or arg.var.kind != "float" or arg.number is not None:
            continue
        # the vjp of a broadcast is a sum; over batch and time the outputs sum
        over = tuple(a for a in line.var.axes if a not in arg.var.axes and not is_outer(a))
        yield name, Gated(builder.sum(cotangent.value(), over)) if over else cotangent


def _gate(zero: tuple[Value, bool], tie: Value | None) -> Gate:
    return Gate(*zero, tie)


def _add(found: dict[str, Gated], name: str, cotangent: Gated) -> None:
    found[name] = Gated(found[name].value() + cotangent.value()) if name in found else cotangent


def _reachable(program: Program, wanted: Iterable[str]) -> set[str]:
    """The variables that depend on a wanted input."""
    reached = set(wanted)
    for line in program.lines:
        if reached.intersection(line.args):
            reached.add(line.var.name)
    return reached
