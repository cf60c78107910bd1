"""Seeded samples of elements and states, with ties, in exact rationals or 40-digit arithmetic."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from scanforge.ir.interpret import Domain, Exact, Precise, is_rational
from scanforge.ir.primitives import primitive
from scanforge.ir.program import Number
from scanforge.ir.scan import Operator

DIGITS = 40
SEED = 20
_POOLS = {
    "any": ["-2", "-1", "-1/2", "0", "1/2", "1", "2", "3"],
    "nonnegative": ["0", "1/3", "1/2", "1", "2", "3"],
    "positive": ["1/3", "1/2", "1", "2", "3"],
    "unit": ["0", "1/4", "1/2", "3/4", "1"],
}
_RANGES = {"any": (-7, 7), "nonnegative": (0, 7), "positive": (1, 7), "unit": (0, 1)}


@dataclass(frozen=True, slots=True)
class Numbers:
    """A domain with what a comparison needs."""

    domain: Domain
    exact: bool

    def make(self, x: Fraction) -> Any:
        """A rational in this domain."""
        return x if self.exact else self.domain.const(0.0, "float") + _mpf(self.domain, x)

    def is_number(self, x: Any) -> bool:
        """Real and not NaN."""
        return not isinstance(x, complex) and not hasattr(x, "_mpc_") and x == x

    def finite(self, values: dict[str, Any]) -> bool:
        """Whether no value is infinite."""
        return all(abs(v) != math.inf for v in values.values())

    def equal(self, a: Any, b: Any) -> bool:
        """Exactly, or to 25 of the 40 digits."""
        if self.exact or isinstance(a, bool | int) or a == b:
            return bool(a == b)
        return bool(abs(a - b) <= 1e-25 * (1 + abs(a) + abs(b)))

    def show(self, x: Any) -> str:
        """A short decimal, or the fraction where that says more."""
        if isinstance(x, bool | int):
            return repr(x)
        if isinstance(x, Fraction) and x.denominator < 1000 and abs(x) < 1e15:
            return str(x)
        if isinstance(x, Fraction) and abs(x) >= 2**1000:  # float() has no such numbers
            return f"about {'-' if x < 0 else ''}2**{int(abs(x)).bit_length()}"
        return f"{float(x):.6g}"

    def show_all(self, values: dict[str, Any]) -> dict[str, str]:
        """Each value shown."""
        return {n: self.show(v) if self.is_number(v) else "NaN" for n, v in values.items()}


def _mpf(domain: Any, x: Fraction) -> Any:
    return domain.mpmath.mpf(x.numerator) / x.denominator


def numbers_for(operator: Operator, *, with_identity: bool) -> Numbers:
    """Exact rationals for rational operators, else 40-digit numbers, also where infinities take part."""
    ends = [leaf.identity for leaf in operator.leaves] + [s.initial for s in operator.states]
    infinite = with_identity and any(abs(x) == math.inf for x in ends)
    if not infinite and is_rational(operator.combine) and is_rational(operator.apply):
        return Numbers(Exact(), exact=True)
    return Numbers(Precise(DIGITS), exact=False)


class Sampler:
    """Draws elements and states by name."""

    def __init__(self, operator: Operator, numbers: Numbers) -> None:
        self.operator, self.numbers = operator, numbers
        self.random = random.Random(SEED)

    def draws(
        self, elements: tuple[str, ...], count: int, *, initial: bool
    ) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, Any]]]:
        """`count` samples; with `initial` the first one is at the declared initial states."""
        for i in range(count):
            made = {
                e: {leaf.name: self.value(leaf.kind, leaf.domain) for leaf in self.operator.leaves}
                for e in elements
            }
            states = {s.name: self.value(s.kind, s.domain) for s in self.operator.states}
            if initial and i == 0:
                states = {s.name: self.numbers.domain.const(s.initial, s.kind) for s in self.operator.states}
            yield made, states

    def value(self, kind: str, domain: str) -> Any:
        """A small value that often ties, or a fraction that rarely does."""
        if kind == "bool":
            return self.random.random() < 0.5
        if kind == "int":
            return self.random.choice([-1, 0, 0, 1, 1, 2, 3])
        if self.random.random() < 0.6:
            return self.numbers.make(Fraction(self.random.choice(_POOLS[domain])))
        low, high = _RANGES[domain]
        below = self.random.randint(2, 9)
        return self.numbers.make(Fraction(self.random.randint(low * below, high * below), below))


class Float64:
    """NumPy's float64, where only NaN is looked for."""

    def __init__(self) -> None:
        import numpy

        self.numpy = numpy

    def const(self, number: Number, kind: str) -> Any:
        """A float64."""
        return self.numpy.float64(number) if kind == "float" else number

    def call(self, op: str, *args: Any) -> Any:
        """The row's rule, with NaN passing through min and max."""
        if op in {"minimum", "maximum"} and any(a != a for a in args):
            return self.numpy.float64("nan")
        with self.numpy.errstate(all="ignore"):
            return primitive(op).number(self, *args)

    def __getattr__(self, name: str) -> Any:
        if name == "mpf":
            return self.numpy.float64
        return getattr(math if name == "erf" else self.numpy, name)
