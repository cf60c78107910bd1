"""Program -> Program: the same step with less work in its widest lines.

Products are taken narrow axes first: (dt B) u is (dt u) B, one product less for each entry of B's own axis. A
factor that lacks the axes of a sum is taken out of it. The pairs of factors that most products have are taken
once. exp(x y), where y does not change over time, is 2 to the power of x times y log2 e, which is a product
less at every step. expm1(x) is taken from exp(x), and that from the square of exp(x / 2) where the step needs
it anyway.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import prod
from operator import mul

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.program import Line, Program
from scanforge.ir.scan import TIME, before
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
        self.pairs = common_pairs(program, self.powers.terms)
        self.made: dict[str, Value] = {}
        self.origin: dict[str, str] = {}  # of a variable here: the one of the program, or the pair
        for v in program.inputs:
            self.keep(v.name, self.builder.input(v.name, v.kind, v.axes))

    def result(self) -> Program:
        for line in self.program.lines:
            self.line(line)
        outputs = {name: self.value(variable) for name, variable in self.program.outputs}
        return check_program(tidy(self.builder.finish(outputs)))

    def value(self, name: str) -> Value:
        """The variable, its product taken if it is one."""
        if name not in self.made:
            self.keep(name, self.product(self.factors[name]))
        return self.made[name]

    def keep(self, name: str, value: Value) -> None:
        self.made[name] = value
        self.origin.setdefault(value.var.name, name)

    def product(self, factors: Sequence[Value]) -> Value:
        """The product: common pairs first, then as `product` does."""
        left = list(factors)
        for (a, b), pair in self.pairs.items():
            at = {self.origin.get(f.var.name): i for i, f in enumerate(left)}
            if a in at and b in at:
                joined = left[at[a]] * left[at[b]]
                left = [f for i, f in enumerate(left) if i not in {at[a], at[b]}] + [joined]
                self.origin[joined.var.name] = pair
        return product(left)

    def factors_of(self, name: str) -> list[Value]:
        return self.factors.get(name) or [self.made[name]]

    def line(self, line: Line) -> None:
        name, kind = line.var.name, line.var.kind
        if line.value is not None:
            self.keep(name, self.builder.const(line.value, kind))
        elif line.op == "mul" and kind == "float":
            self.factors[name] = [f for a in line.args for f in self.factors_of(a)]
        elif line.op == "neg" and line.args[0] in self.factors:
            self.factors[name] = [*self.factors[line.args[0]], self.builder.const(-1.0, "float")]
        elif line.op == "sum":
            self.sum(line)
        elif line.op == "exp":
            self.keep(name, self.exp(line.args[0]))
        elif line.op == "expm1":
            self.keep(name, self.expm1(line.args[0]))
        else:
            self.keep(name, self.builder.call(line.op, *(self.value(a) for a in line.args)))

    def sum(self, line: Line) -> None:
        """Factors without the axes of the sum stand outside."""
        over = set(line.over)
        factors = self.factors_of(line.args[0])
        inside = [f for f in factors if over & set(f.var.axes)]
        outside = [f for f in factors if not over & set(f.var.axes)]
        if not inside or not outside:
            self.keep(line.var.name, self.builder.sum(self.value(line.args[0]), line.over))
        else:
            self.factors[line.var.name] = [*outside, self.builder.sum(self.product(inside), line.over)]

    def exp(self, name: str) -> Value:
        factors = self.factors_of(name)
        steady = [f for f in factors if TIME not in f.var.axes]
        moving = [f for f in factors if TIME in f.var.axes]
        if not moving or all(f.number is not None for f in steady):
            return self.value(name).call("exp")
        return product([self.product(moving), self.product(steady) * math.log2(math.e)]).call("exp2")

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
    """Products and powers of a program."""

    terms: dict[str, Terms]  # every variable as a product
    of: dict[Terms, str]  # a product that exp is taken of -> its variable


def _powers(program: Program) -> _Powers:
    terms: dict[str, Terms] = {v.name: (1.0, (v.name,)) for v in program.inputs}
    for line in program.lines:
        name = line.var.name
        if line.value is not None:
            terms[name] = float(line.value), ()
        elif line.op == "mul" and line.var.kind == "float":
            parts = [terms[a] for a in line.args]
            terms[name] = prod(n for n, _ in parts), tuple(sorted(r for _, rest in parts for r in rest))
        elif line.op == "neg" and len(terms[line.args[0]][1]) > 1:
            number, rest = terms[line.args[0]]
            terms[name] = -number, rest
        else:
            terms[name] = 1.0, (name,)
    exps = [line.args[0] for line in program.lines if line.op == "exp"]
    return _Powers(terms, {terms[x]: x for x in exps})


def common_pairs(program: Program, terms: Mapping[str, Terms]) -> dict[tuple[str, str], str]:
    """The pairs of factors that several products have, the commonest first, with names for their products.

    A pair may be of a pair. Those come first that are products of the program themselves, and so cost nothing
    more; among equally common ones, those that need no state before the step.
    """
    axes = {n: v.axes for n, v in program.variables().items()}
    fed = _fed(program)
    factors = {n for x in program.lines if _is_product(x) for n in x.args}
    read = {a for x in program.lines if not _is_product(x) for a in x.args} | {v for _, v in program.outputs}
    wholes = [
        x.var.name
        for x in program.lines
        if _is_product(x) and (x.var.name not in factors or x.var.name in read)
    ]
    products = [list(terms[n][1]) for n in wholes]
    found: dict[tuple[str, str], str] = {}
    while True:
        counts: Counter[tuple[str, str]] = Counter()
        for names in products:
            distinct = sorted(set(names))
            counts.update((a, b) for a, b in combinations(distinct, 2) if _nested(axes[a], axes[b]))
        several = [p for p, n in counts.items() if n > 1]
        if not several:
            return found
        made = {tuple(sorted(names)) for names in products}
        a, b = min(
            several,
            key=lambda p: (axes[p[0]] != axes[p[1]], p not in made, -counts[p], bool({*p} & fed), p),
        )
        pair = f"{a}*{b}"
        found[a, b], axes[pair] = pair, max(axes[a], axes[b], key=len)
        fed |= {pair} if {a, b} & fed else set()
        for names in products:
            if a in names and b in names:
                names.remove(a)
                names.remove(b)
                names.append(pair)


def _nested(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether one has all axes of the other; what does not change over time stays by itself."""
    return (TIME in a) == (TIME in b) and ({*a} <= {*b} or {*b} <= {*a})


def _is_product(line: Line) -> bool:
    return line.op == "mul" and line.var.kind == "float"


def _fed(program: Program) -> set[str]:
    """What a state before the step goes into."""
    fed = {v.name for v in program.inputs if v.name.startswith(before(""))}
    for line in program.lines:
        if fed & set(line.args):
            fed.add(line.var.name)
    return fed


def product(factors: Sequence[Value]) -> Value:
    """The product, those two first whose product has the fewest axes; in the order given if all are alike."""
    numbers = [f for f in factors if f.number is not None]
    rest = [f for f in factors if f.number is None]
    number = prod(float(f.number) for f in numbers if f.number is not None)
    if numbers and rest and abs(number) == 1.0:
        return product(rest) if number > 0 else -product(rest)
    if len(numbers) > 1 and rest:
        return product([*rest, numbers[0].builder.const(number, "float")])
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
