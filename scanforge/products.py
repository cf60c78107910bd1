"""Values taken apart: what a value is linear in, and what it is a product of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import inf, log, log2
from operator import mul

from scanforge.ir.builder import Builder
from scanforge.ir.program import Line
from scanforge.ir.value import Value

LOG2_E = 1.0 / log(2.0)
Linear = tuple[list[Value] | None, Value | None]


class NotOfFormError(Exception):
    """Why something is not of the form that is asked for: a sentence without its end."""


class Algebra:
    """What the lines of a builder say of its values; new lines are written into it."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def fed_by(self, names: Iterable[str], without: str = "") -> set[str]:
        """The variables that depend on these, but for paths through one line."""
        fed = set(names)
        for line in self.builder.lines:
            if line.var.name != without and fed.intersection(line.args):
                fed.add(line.var.name)
        return fed

    def live(self, values: Iterable[Value]) -> set[str]:
        """The variables that these are made of."""
        live = {v.var.name for v in values}
        for line in reversed(self.builder.lines):
            if line.var.name in live:
                live.update(line.args)
        return live

    def line(self, name: str) -> Line | None:
        """The line that assigns a variable; None for an input."""
        return next((x for x in self.builder.lines if x.var.name == name), None)

    def value_of(self, name: str) -> Value:
        """A variable as a value."""
        line = self.line(name)
        if line is not None:
            return Value(self.builder, line.var, line.value)
        return Value(self.builder, next(v for v in self.builder.inputs if v.name == name))

    def number(self, x: float) -> Value:
        """A constant."""
        return self.builder.const(x, "float")

    def product(self, factors: Iterable[Value]) -> Value:
        """The product, without factors 1."""
        kept = [f for f in factors if f.number != 1]
        return reduce(mul, kept) if kept else self.number(1.0)

    def select(self, condition: Value, value: Value, *, keeps: bool) -> Value:
        """The value where the condition keeps it, else 0."""
        pair = (value, 0.0) if keeps else (0.0, value)
        chosen: Value = condition.call("where", *pair)
        return chosen

    def linear(self, value: Value, symbol: str) -> Linear:
        """A value as (the factors of the symbol's coefficient, the rest); None for a part that is absent."""
        if value.var.name == symbol:
            return [], None
        fed = self.fed_by([symbol])
        if value.var.name not in fed:
            return None, value
        line = self.line(value.var.name)
        assert line is not None
        args = [self.value_of(a) for a in line.args]
        if line.op in {"add", "sub"}:
            return self._linear_sum(line.op, args, symbol)
        if line.op in {"where", "guard"}:
            return self._linear_selection(line, args, symbol)
        moving = [a.var.name in fed for a in args]
        if line.op not in {"mul", "div", "neg"} or sum(moving) != 1 or (line.op == "div" and moving[1]):
            raise NotOfFormError(f"{line.expression()} is not linear in the state")
        inner, rest = self.linear(args[moving.index(True)], symbol)
        if line.op == "neg":
            return inner if inner is None else [*inner, self.number(-1.0)], rest if rest is None else -rest
        other = args[1 - moving.index(True)]
        if line.op == "div":
            other = 1.0 / other
        return None if inner is None else [*inner, other], None if rest is None else rest * other

    def _linear_sum(self, op: str, args: Sequence[Value], symbol: str) -> Linear:
        (first, rest), (second, more) = (self.linear(a, symbol) for a in args)
        if first is not None and second is not None:
            raise NotOfFormError("a sum has the state in both of its terms")
        if op == "sub":
            second = None if second is None else [*second, self.number(-1.0)]
            more = None if more is None else -more
        if rest is not None and more is not None:
            rest, more = rest + more, None
        return second if first is None else first, more if rest is None else rest

    def _linear_selection(self, line: Line, args: Sequence[Value], symbol: str) -> Linear:
        """Where the state, or nothing, is taken."""
        condition, *branches = args
        if line.op == "guard":
            return self.linear(branches[0], symbol)
        zero = [b.number == 0 for b in branches]
        if condition.var.name in self.fed_by([symbol]) or sum(zero) != 1:
            raise NotOfFormError(
                "a condition chooses between the state and another, as resets to a given state do"
            )
        factors, rest = self.linear(branches[zero.index(False)], symbol)
        keeps = zero[1]
        chosen = [self.select(condition, f, keeps=keeps) for f in factors or [self.number(1.0)]]
        return (
            None if factors is None else chosen,
            None if rest is None else self.select(condition, rest, keeps=keeps),
        )

    def factors(self, value: Value, apart: frozenset[str]) -> list[Value]:
        """What a value is a product of, taken apart while it has both of two axes."""
        line = self.line(value.var.name)
        if not apart <= set(value.var.axes) or line is None:
            return [value]
        args = [self.value_of(a) for a in line.args]
        if line.op == "mul":
            return [f for a in args for f in self.factors(a, apart)]
        if line.op == "div":
            return [*self.factors(args[0], apart), 1.0 / args[1]]
        if line.op == "neg":
            return [*self.factors(args[0], apart), self.number(-1.0)]
        if line.op == "guard":
            return [args[0].call("guard", f) for f in self.factors(args[1], apart)]
        zero = [a.number == 0 for a in args[1:]]
        if line.op == "where" and any(zero):
            kept = self.factors(args[1 + zero.index(False)], apart)
            return [self.select(args[0], f, keeps=zero[1]) for f in kept]
        return [value]

    def separate(self, value: Value) -> list[Value]:
        """The factors of a product, as far as they can be told apart."""
        line = self.line(value.var.name)
        if line is None or line.op not in {"mul", "div", "neg", "guard", "where"}:
            return [value]
        args = [self.value_of(a) for a in line.args]
        inner = {"mul": args, "guard": args[1:], "where": args[1:]}.get(line.op, args[:1])
        return [f for a in inner for f in self.separate(a)] + (args[1:] if line.op == "div" else [])

    def cleared(self, factors: Sequence[Value], axes: set[str]) -> tuple[Value | None, list[Value]]:
        """Where a product is 0 by a condition of these axes, None for nowhere; and its other factors."""
        found, rest = None, []
        for factor in factors:
            line = self.line(factor.var.name)
            branches = [self.value_of(a).number for a in line.args[1:]] if line else []
            if line is None or line.op != "where" or branches != [0, 1] or not set(factor.var.axes) <= axes:
                rest.append(factor)
                continue
            condition = self.value_of(line.args[0])
            found = condition if found is None else found | condition
        return found, rest

    def log2_of(self, value: Value, *, sigmoids: bool = False) -> Value | None:
        """The logarithm of a value whose program takes an exponential, written without that.

        That of a sigmoid costs more than the sigmoid, but its slope does not.
        """
        line = self.line(value.var.name)
        if value.number is not None and value.number >= 0:
            return self.number(log2(value.number) if value.number else -inf)
        if line is None:
            return None
        args = [self.value_of(a) for a in line.args]
        logs: Value
        if line.op == "exp":
            logs = args[0] * LOG2_E
            return logs
        if line.op == "exp2":
            return args[0]
        if line.op == "sigmoid" and sigmoids:
            logs = (-args[0]).call("softplus") * -LOG2_E
            return logs
        parts = [self.log2_of(a, sigmoids=sigmoids) for a in args[line.op in {"guard", "where"} :]]
        if line.op not in {"guard", "where", "mul"} or any(part is None for part in parts):
            return None
        first, second = parts[0], parts[-1]
        assert first is not None and second is not None
        if line.op == "mul":
            logs = first + second
            return logs
        logs = args[0].call(line.op, *([first] if line.op == "guard" else [first, second]))
        return logs
