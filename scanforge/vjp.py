"""Reverse accumulation over assignments: cotangents of a Program's outputs -> cotangents of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from scanforge.ir.builder import Builder
from scanforge.ir.primitives import TABLE
from scanforge.ir.program import Line, Program
from scanforge.ir.scan import BATCH, TIME
from scanforge.ir.value import Value

Cotangents = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Gated:
    """A cotangent that selections let through: 0 where one of them closes, else `base` halved at their ties.

    A chain of minimum, maximum and where keeps its conditions apart from the cotangent: one product and one
    selection then stand between the cotangent before and after the chain, however long it is.
    """

    base: Value
    zero: tuple[tuple[Value, bool], ...] = ()  # (condition, whether it closes when true)
    weight: Value | None = None

    def through(self, zero: tuple[Value, bool], tie: Value | None) -> Gated:
        """Past one more selection."""
        weight = self.weight
        if tie is not None:
            one = tie.builder.const(1.0, "float") if weight is None else weight
            weight = tie.call("where", 0.5 * one, one)
        return Gated(self.base, (*self.zero, zero), weight)

    def value(self) -> Value:
        """The cotangent as one value."""
        value = self.base if self.weight is None else self.weight * self.base
        if not self.zero:
            return value
        if len(self.zero) == 1 and not self.zero[0][1]:
            return self.zero[0][0].call("where", value, 0.0)
        closed = [condition if closes else ~condition for condition, closes in self.zero]
        return reduce(or_, closed).call("where", 0.0, value)


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
    if line.op == "sum":  # the vjp of a sum is a broadcast, which named axes do by themselves
        yield line.args[0], g
        return
    row = TABLE.get(line.op)
    if row is None or row.vjp is None:
        return
    args = [values[a] for a in line.args]
    if row.gate is not None:
        passed = [gate and g.through(*gate) for gate in row.gate(*args)]
    else:
        pulled = row.vjp(g.value(), values[line.var.name], *args)
        passed = [None if cotangent is None else Gated(cotangent) for cotangent in pulled]
    for name, arg, cotangent in zip(line.args, args, passed, strict=True):
        if cotangent is None or arg.var.kind != "float" or arg.number is not None:
            continue
        # the vjp of a broadcast is a sum; over batch and time the outputs sum
        over = tuple(a for a in line.var.axes if a not in arg.var.axes and a not in {BATCH, TIME})
        yield name, Gated(builder.sum(cotangent.value(), over)) if over else cotangent


def _add(found: dict[str, Gated], name: str, cotangent: Gated) -> None:
    found[name] = Gated(found[name].value() + cotangent.value()) if name in found else cotangent


def _reachable(program: Program, wanted: Iterable[str]) -> set[str]:
    """The variables that depend on a wanted input."""
    reached = set(wanted)
    for line in program.lines:
        if reached.intersection(line.args):
            reached.add(line.var.name)
    return reached
