"""Program -> Program: the same step with less work in its widest lines.

Products are taken narrow axes first: (dt B) u is (dt u) B, one product less for each entry of B's own axis. A
factor that lacks the axes of a sum is taken out of it. exp(x y), where y does not change over time, is 2 to
the power of x times y log2 e, which is a product less at every step. expm1(x) is taken from exp(x), and that
from the square of exp(x / 2) where the step needs it anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import mul

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.program import Line, Program
from scanforge.ir.scan import TIME
from scanforge.ir.value import Value
from scanforge.prune import tidy


def narrowed(program: Program) -> Program:
    """The program with its products in another order: equal but for rounding."""
    return _Narrowing(program).result()


class _Narrowing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.builder = Builder(program.name, program.axes, where="")
        self.factors: dict[str, list[Value]] = {}
        self.powers = _powers(program)
        self.made: dict[str, Value] = {}
        for v in program.inputs:
            self.made[v.name] = self.builder.input(v.name, v.kind, v.axes)

    def result(self) -> Program:
        for line in self.program.lines:
            self.line(line)
        outputs = {name: self.value(variable) for name, variable in self.program.outputs}
        return check_program(tidy(self.builder.finish(outputs)))

    def value(self, name: str) -> Value:
        """The variable, its product taken if it is one."""
        if name not in self.made:
            self.made[name] = product(self.factors[name])
        return self.made[name]

    def factors_of(self, name: str) -> list[Value]:
        return self.factors.get(name) or [self.made[name]]

    def line(self, line: Line) -> None:
        name, kind = line.var.name, line.var.kind
        if line.value is not None:
            self.made[name] = self.builder.const(line.value, kind)
        elif line.op == "mul" and kind == "float":
            self.factors[name] = [f for a in line.args for f in self.factors_of(a)]
        elif line.op == "sum":
            self.sum(line)
        elif line.op == "exp":
            self.made[name] = self.exp(line.args[0])
        elif line.op == "expm1":
            self.made[name] = self.expm1(line.args[0])
        else:
            self.made[name] = self.builder.call(line.op, *(self.value(a) for a in line.args))

    def sum(self, line: Line) -> None:
        """Factors without the axes of the sum stand outside."""
        over = set(line.over)
        factors = self.factors_of(line.args[0])
        inside = [f for f in factors if over & set(f.var.axes)]
        outside = [f for f in factors if not over & set(f.var.axes)]
        if not inside or not outside:
            self.made[line.var.name] = self.builder.sum(self.value(line.args[0]), line.over)
        else:
            self.factors[line.var.name] = [*outside, self.builder.sum(product(inside), line.over)]

    def exp(self, name: str) -> Value:
        factors = self.factors_of(name)
        steady = [f for f in factors if TIME not in f.var.axes]
        moving = [f for f in factors if TIME in f.var.axes]
        if not moving or all(f.number is not None for f in steady):
            return self.value(name).call("exp")
        return product([*moving, product(steady) * math.log2(math.e)]).call("exp2")


    def expm1(self, name: str) -> Value:
        number, rest = self.powers.terms[name]
        half = self.powers.of.get((number / 2, rest))
        if half is None or half not in {*self.made, *self.factors}:
            exp = self.exp(name)
        else:
            exp = self.exp(half) * self.exp(half)
        return self.builder.call("expm1_of", self.value(name), exp)


Terms = tuple[float, tuple[str, ...]]  # a product: its number, and its other factors by name


@dataclass(frozen=True, slots=True)
class _Powers:
    """Every float variable as a product, and which products a program takes exp of."""

    terms: dict[str, Terms]
    of: dict[Terms, str]


def _powers(program: Program) -> _Powers:
    terms: dict[str, Terms] = {v.name: (1.0, (v.name,)) for v in program.inputs}
    for line in program.lines:
        name = line.var.name
        if line.value is not None:
            terms[name] = float(line.value), ()
        elif line.op == "mul" and line.var.kind == "float":
            parts = [terms[a] for a in line.args]
            terms[name] = prod(n for n, _ in parts), tuple(sorted(r for _, rest in parts for r in rest))
        else:
            terms[name] = 1.0, (name,)
    exps = [line.args[0] for line in program.lines if line.op == "exp"]
    return _Powers(terms, {terms[x]: x for x in exps})


def product(factors: Sequence[Value]) -> Value:
    """The product, those two first whose product has the fewest axes; in the order given if all are alike."""
    if len({f.var.axes for f in factors}) == 1:
        return reduce(mul, factors)
    left = list(factors)
    while len(left) > 1:
        pairs = [(i, j) for i in range(len(left)) for j in range(i + 1, len(left))]
        i, j = min(pairs, key=lambda p: len({*left[p[0]].var.axes, *left[p[1]].var.axes}))
        joined = left[i] * left[j]
        left = [x for k, x in enumerate(left) if k not in {i, j}]
        left.insert(i, joined)
    return left[0]
