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


BITS = 2_000  # of an exponent or of a rational: far beyond float64, and still quick to compute with


class Exact:
    """Exact rationals: for programs of rational primitives and finite constants.

    Raises OverflowError, as the next domain does, for a number that is too large to go on with.
    """

    def const(self, number: Number, kind: str) -> Any:
        """A float becomes the rational that it is."""
        return Fraction(number) if kind == "float" else number

    def call(self, op: str, *args: Any) -> Any:
        """The row's exact rule."""
        if op == "pow" and _bits(args[0]) * abs(args[1]) > BITS:
            raise OverflowError
        return _bounded(_number(op, None, args))


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
        return _bounded(_number(op, self.mpmath, args))


def _number(op: str, mpmath: Any, args: tuple[Any, ...]) -> Any:
    """NaN where a division has no value, since a `where` may not take it; NaN passes through min and max."""
    if op in {"minimum", "maximum"} and any(a != a for a in args):
        return float("nan")
    try:
        return primitive(op).number(mpmath, *args)
    except ZeroDivisionError:
        return float("nan")


def _bounded(x: Any) -> Any:
    if _bits(x) > BITS:
        raise OverflowError
    return x


def _bits(x: Any) -> int:
    """The length of a rational's parts, or how far an mpmath number lies above 1, as a power of 2."""
    if isinstance(x, Fraction):
        return max(x.numerator.bit_length(), x.denominator.bit_length())
    parts = x._mpc_ if hasattr(x, "_mpc_") else [x._mpf_] if hasattr(x, "_mpf_") else []
    return max((exponent + length for _, _, exponent, length in parts), default=0)


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
