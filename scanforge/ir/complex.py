"""A complex number of one lane while a method is traced: a pair of real Values.

Gradients need no rule of their own: torch's gradient of a complex tensor is dL/dre + i dL/dim, which
is what the real pair gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from scanforge.errors import TraceError
from scanforge.ir.unknown import Unknown, location
from scanforge.ir.value import Value


class Complex(Unknown):
    """real_part + i imag_part. It has + - * / and integer powers, abs, exp, conj, where; no order."""

    __hash__ = object.__hash__

    def __init__(self, real_part: Any, imag_part: Any) -> None:
        self.real_part, self.imag_part = real_part, imag_part

    def __add__(self, other: Any) -> Complex:
        o = pair(other)
        return Complex(self.real_part + o.real_part, self.imag_part + o.imag_part)

    __radd__ = __add__

    def __neg__(self) -> Complex:
        return Complex(-self.real_part, -self.imag_part)

    def __sub__(self, other: Any) -> Complex:
        o = pair(other)
        return Complex(self.real_part - o.real_part, self.imag_part - o.imag_part)

    def __rsub__(self, other: Any) -> Complex:
        return pair(other) + -self

    def __mul__(self, other: Any) -> Complex:
        a, b = self.real_part, self.imag_part
        if not isinstance(other, Complex | complex):
            return Complex(a * other, b * other)
        o = pair(other)
        return Complex(a * o.real_part - b * o.imag_part, a * o.imag_part + b * o.real_part)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Complex:
        if not isinstance(other, Complex | complex):
            return Complex(self.real_part / other, self.imag_part / other)
        o = pair(other)
        size = o.real_part * o.real_part + o.imag_part * o.imag_part
        product = self * Complex(o.real_part, -o.imag_part)
        return Complex(product.real_part / size, product.imag_part / size)

    def __rtruediv__(self, other: Any) -> Complex:
        size = self.real_part * self.real_part + self.imag_part * self.imag_part
        product = self.conj() * other
        return Complex(product.real_part / size, product.imag_part / size)

    def __pow__(self, power: Any) -> Complex:
        if not isinstance(power, int) or power < 1:
            raise TraceError(
                f"{self.origin()[0]} ({location()}) takes the power {power!r} of a complex value, which has "
                "whole powers from 1 on. Write sf.exp(p * z) with the logarithm z as an element."
            )
        result = self
        for _ in range(power - 1):
            result = result * self
        return result

    def __rpow__(self, base: Any) -> NoReturn:
        self.refuse(
            f"takes {base!r} to the power of {{}}",
            "Write sf.exp(x * log_base) with the logarithm of the base.",
        )

    def __pos__(self) -> Complex:
        return self

    def __abs__(self) -> Any:
        """torch's abs: its slope at 0 is 0."""
        square = self.real_part * self.real_part + self.imag_part * self.imag_part
        zero = square == 0
        return zero.call("where", 0.0, zero.call("where", 1.0, square).call("sqrt"))

    def conj(self) -> Complex:
        """real_part - i imag_part."""
        return Complex(self.real_part, -self.imag_part)

    def exp(self) -> Complex:
        """exp(re) (cos im + i sin im)."""
        size = self.real_part.call("exp")
        return Complex(size * self.imag_part.call("cos"), size * self.imag_part.call("sin"))

    def __eq__(self, other: Any) -> Any:
        o = pair(other)
        return (self.real_part == o.real_part) & (self.imag_part == o.imag_part)

    def __ne__(self, other: Any) -> Any:
        return ~(self == other)

    def origin(self) -> tuple[str, str]:
        """That of the first part that is a Value."""
        program, name = next(p for p in parts(self) if isinstance(p, Value)).origin()
        return program, f"a complex value ({name}, ...)"

    def _unordered(self, other: Any) -> Any:
        raise TraceError(
            f"{self.origin()[0]} ({location()}) orders complex values, which have no order. "
            "Compare sf.abs(x) or sf.real(x)."
        )

    __lt__ = __le__ = __gt__ = __ge__ = _unordered


def pair(x: Any) -> Complex:
    """A complex value of anything that a method may use as a number."""
    if isinstance(x, Complex):
        return x
    if isinstance(x, complex):
        return Complex(x.real, x.imag)
    return Complex(x, 0.0)


def lift(function: Callable[..., Any], *args: Any) -> Any:
    """Apply a function to the real and to the imaginary parts, when an argument is complex."""
    if not any(isinstance(a, Complex) for a in args):
        return function(*args)
    pairs = [pair(a) for a in args]
    return Complex(function(*(p.real_part for p in pairs)), function(*(p.imag_part for p in pairs)))


def parts(x: Any) -> tuple[Any, ...]:
    """The real Values of a value: one, or two for a complex pair."""
    return (x.real_part, x.imag_part) if isinstance(x, Complex) else (x,)


def is_value(x: object) -> bool:
    """Whether x was made by tracing."""
    return isinstance(x, Value | Complex)
