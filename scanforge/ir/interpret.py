"""The meaning of a Program, in any domain of numbers: a domain says what constants and primitives are."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Protocol

from scanforge.ir.primitives import TABLE, primitive
from scanforge.ir.program import Number, Program


class Domain(Protocol):
    """Numbers of one sort: mpmath, rationals, SymPy expressions, lattice polynomials, tensors."""

    def const(self, number: Number, kind: str) -> Any:
        """The domain's form of a constant."""

    def call(self, op: str, *args: Any) -> Any:
        """A primitive on the domain's numbers."""


def interpret(program: Program, inputs: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
    """The program's outputs for these inputs. Lane by lane: sums over axes have no meaning here."""
    values = dict(inputs)
    for line in program.lines:
        if line.value is not None:
            values[line.var.name] = domain.const(line.value, line.var.kind)
        else:
            values[line.var.name] = domain.call(line.op, *(values[a] for a in line.args))
    return {name: values[variable] for name, variable in program.outputs}


class Exact:
    """Exact rationals: for programs of rational primitives and finite constants."""

    def const(self, number: Number, kind: str) -> Any:
        """A float becomes the rational that it is."""
        return Fraction(number) if kind == "float" else number

    def call(self, op: str, *args: Any) -> Any:
        """The row's exact rule."""
        return _number(op, None, args)


class Precise:
    """mpmath numbers of so many decimal digits."""

    def __init__(self, digits: int) -> None:
        import mpmath

        self.mpmath = mpmath.MPContext()
        self.mpmath.dps = digits

    def const(self, number: Number, kind: str) -> Any:
        """A float, without rounding."""
        return self.mpmath.mpf(number) if kind == "float" else number

    def call(self, op: str, *args: Any) -> Any:
        """The row's exact rule."""
        return _number(op, self.mpmath, args)


def _number(op: str, mpmath: Any, args: tuple[Any, ...]) -> Any:
    """NaN where a division has no value, since a `where` may not take it; NaN passes through min and max."""
    if op in {"minimum", "maximum"} and any(a != a for a in args):
        return float("nan")
    try:
        return primitive(op).number(mpmath, *args)
    except ZeroDivisionError:
        return float("nan")


def is_rational(program: Program) -> bool:
    """Whether every line maps rationals to rationals and every constant is finite."""
    finite = all(abs(x) != float("inf") for x in program.constants().values())
    return finite and all(
        _rational(line.op, line.args, program) for line in program.lines if line.op != "const"
    )


def _rational(op: str, args: tuple[str, ...], program: Program) -> bool:
    if op == "pow":  # x ** 2 is rational, x ** 0.5 and 2 ** x are not
        power = program.constants().get(args[1])
        return power is not None and float(power).is_integer()
    return TABLE[op].rational
