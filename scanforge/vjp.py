"""Reverse accumulation over assignments: cotangents of a Program's outputs -> cotangents of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scanforge.ir.builder import Builder
from scanforge.ir.primitives import TABLE
from scanforge.ir.program import Line, Program
from scanforge.ir.scan import BATCH, TIME
from scanforge.ir.value import Value

Cotangents = dict[str, Value]


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
    found: Cotangents = {}
    for output, variable in program.outputs:
        if output in seeds and variable in relevant:
            _add(found, variable, seeds[output])
    for line in reversed(program.lines):
        if line.var.name in found and line.var.kind == "float":
            with builder.at(line.where):
                for name, cotangent in _line(builder, line, values, found[line.var.name]):
                    if name in relevant:
                        _add(found, name, cotangent)
    return {name: found[name] for name in wanted if name in found}


def _line(builder: Builder, line: Line, values: Mapping[str, Value], g: Value) -> Iterable[tuple[str, Value]]:
    if line.op == "sum":  # the vjp of a sum is a broadcast, which named axes do by themselves
        yield line.args[0], g
        return
    rule = TABLE[line.op].vjp if line.op in TABLE else None
    if rule is None:
        return
    args = [values[a] for a in line.args]
    for name, arg, cotangent in zip(line.args, args, rule(g, values[line.var.name], *args), strict=True):
        if cotangent is None or arg.var.kind != "float" or arg.number is not None:
            continue
        # the vjp of a broadcast is a sum; over batch and time the outputs sum
        over = tuple(a for a in line.var.axes if a not in arg.var.axes and a not in {BATCH, TIME})
        yield name, builder.sum(cotangent, over) if over else cotangent


def _add(found: Cotangents, name: str, cotangent: Value) -> None:
    found[name] = found[name] + cotangent if name in found else cotangent


def _reachable(program: Program, wanted: Iterable[str]) -> set[str]:
    """The variables that depend on a wanted input."""
    reached = set(wanted)
    for line in program.lines:
        if reached.intersection(line.args):
            reached.add(line.var.name)
    return reached
