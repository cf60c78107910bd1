"""The primitive table: one row holds all that scanforge knows about a primitive.

To add one, add a row: `sf.<name>`, its gradient, its laws and its code follow from it.

A vjp takes the cotangent `g`, the result `y` and the arguments, as Values, and returns one
cotangent per argument, None where it is zero. `maximum`, `minimum` and `where` select instead of
multiplying, as torch does: a factor 0 would turn an infinite cotangent into NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scanforge.errors import ScanforgeError

Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One row. `number` takes exact rationals or mpmath numbers (M is mpmath), `sympy` expressions."""

    name: str
    kinds: str  # a rule of typing.py: number, float, compare, logic, select, guard, power, cast
    text: str  # as a person writes it
    torch: str
    triton: str  # may call the helpers of emit/triton_maths.py
    vjp: Rule | None
    number: Rule
    sympy: Rule
    rational: bool = False  # maps rationals to rationals
    literal: bool = False  # the torch text takes Python numbers beside tensors
    gate: Rule | None = None  # of a selection: per argument ((condition, closes if true), tie), for vjp.py
    doc: str = ""  # of the function `sf.<name>`; empty for what Python writes as a sign


def _ties(g: Any, a: Any, b: Any, loses: str) -> Any:
    """torch's cotangent of a in maximum or minimum: all, half at a tie, 0 where `loses` holds."""
    return (a.call(loses, b)).call("where", 0.0, (a == b).call("where", 0.5 * g, g))


def _pow_base(g: Any, x: Any, p: Any) -> Any:
    """0 where the exponent is 0, so that 0**0 has no NaN slope."""
    if p.number is not None:
        return None if p.number == 0 else g * (p * x ** (p - 1))
    return (p == 0).call("where", 0.0, g * (p * x ** (p - 1)))


def _pow_exponent(g: Any, y: Any, x: Any, p: Any) -> Any:
    if p.number is not None:
        return None
    zero = (x == 0) & (p >= 0)  # there y log x is 0, and its own slopes must not meet log 0
    return zero.call("where", 0.0, g * (y * zero.call("where", 1.0, x).call("log")))


_SQRT_PI = math.sqrt(math.pi)


def _gelu_slope(x: Any) -> Any:
    cdf = 0.5 * (1.0 + (x * math.sqrt(0.5)).call("erf"))
    return cdf + x * ((x * x * -0.5).call("exp") * (1.0 / math.sqrt(2.0 * math.pi)))


def _silu_slope(x: Any) -> Any:
    s = x.call("sigmoid")
    return s * (1.0 + x * (1.0 - s))


def _logistic(m: Any, x: Any) -> Any:
    return 1 / (1 + m.exp(-x))


def _sign(x: Any) -> int:
    return int(x > 0) - int(x < 0)


# fmt: off
_ARITHMETIC = [
    Primitive("add", "number", "{0} + {1}", "{0} + {1}", "{0} + {1}", lambda g, y, a, b: (g, g),
              lambda m, a, b: a + b, lambda s, a, b: a + b, True, True),
    Primitive("sub", "number", "{0} - {1}", "{0} - {1}", "{0} - {1}", lambda g, y, a, b: (g, -g),
              lambda m, a, b: a - b, lambda s, a, b: a - b, True, True),
    Primitive("mul", "number", "{0} * {1}", "{0} * {1}", "{0} * {1}", lambda g, y, a, b: (g * b, g * a),
              lambda m, a, b: a * b, lambda s, a, b: a * b, True, True),
    Primitive("div", "float", "{0} / {1}", "{0} / {1}", "{0} / {1}", lambda g, y, a, b: (g / b, -g * (y / b)),
              lambda m, a, b: a / b, lambda s, a, b: a / b, True, True),
    Primitive("neg", "number", "-{0}", "-{0}", "-{0}", lambda g, y, x: (-g,),
              lambda m, x: -x, lambda s, x: -x, True, True),
    Primitive("pow", "power", "{0} ** {1}", "{0} ** {1}", "power({0}, {1})",
              lambda g, y, x, p: (_pow_base(g, x, p), _pow_exponent(g, y, x, p)),
              lambda m, x, p: x**p, lambda s, x, p: x**p, False, True),
    Primitive("abs", "number", "abs({0})", "torch.abs({0})", "tl.abs({0})",
              lambda g, y, x: (g * x.call("sign"),),
              lambda m, x: abs(x), lambda s, x: s.Abs(x), True,
              doc="Absolute value; its slope at 0 is 0."),
    Primitive("sign", "number", "sign({0})", "torch.sign({0})", "sign({0})", lambda g, y, x: (None,),
              lambda m, x: _sign(x), lambda s, x: s.sign(x), True,
              doc="-1, 0 or 1; its gradient is 0."),
    Primitive("floor", "number", "floor({0})", "torch.floor({0})", "tl.floor({0})", lambda g, y, x: (None,),
              lambda m, x: m.floor(x), lambda s, x: s.floor(x),
              doc="The largest whole number not above x; its gradient is 0."),
    Primitive("minimum", "number", "minimum({0}, {1})", "torch.minimum({0}, {1})", "minimum({0}, {1})",
              lambda g, y, a, b: (_ties(g, a, b, "gt"), _ties(g, b, a, "gt")),
              lambda m, a, b: min(a, b), lambda s, a, b: s.Min(a, b), True,
              gate=lambda a, b: (((b < a, True), a == b), ((a < b, True), a == b)),
              doc="The smaller of two; a tie splits the gradient in half, NaN propagates."),
    Primitive("maximum", "number", "maximum({0}, {1})", "torch.maximum({0}, {1})", "maximum({0}, {1})",
              lambda g, y, a, b: (_ties(g, a, b, "lt"), _ties(g, b, a, "lt")),
              lambda m, a, b: max(a, b), lambda s, a, b: s.Max(a, b), True,
              gate=lambda a, b: (((a < b, True), a == b), ((b < a, True), a == b)),
              doc="The larger of two; a tie splits the gradient in half, NaN propagates."),
    Primitive("where", "select", "where({0}, {1}, {2})", "torch.where({0}, {1}, {2})",
              "tl.where({0}, {1}, {2})",
              lambda g, y, c, a, b: (None, c.call("where", g, 0.0), c.call("where", 0.0, g)),
              lambda m, c, a, b: a if c else b, lambda s, c, a, b: s.Piecewise((a, c), (b, True)), True, True,
              gate=lambda c, a, b: (None, ((c, False), None), ((c, True), None)),
              doc="The second where the condition holds, else the third; the other branch gets gradient 0."),
    Primitive("stop_gradient", "number", "stop_gradient({0})", "{0}.detach()", "({0})",
              lambda g, y, x: (None,),
              lambda m, x: x, lambda s, x: x, True,
              doc="x itself, but what it is made of gets no gradient through it."),
    # the second as it is; its cotangent is selected to 0 where the first is false, be it NaN
    Primitive("guard", "guard", "guard({0}, {1})", "{1}", "{1}",
              lambda g, y, c, x: (None, c.call("where", g, 0.0)),
              lambda m, c, x: x, lambda s, c, x: x, True,
              gate=lambda c, x: (None, ((c, False), None))),
    # a product whose first factor may be a gate: where it is 0 the second does not matter, be it NaN
    Primitive("gated", "float", "{0} * {1}", "torch.where({0} == 0.0, 0.0, torch.mul({0}, {1}))",
              "gated({0}, {1})",
              lambda g, y, a, x: (g * x, a.call("gated", g)),
              lambda m, a, x: a if a == 0 else a * x, lambda s, a, x: a * x, True),
    Primitive("to_float", "cast", "float({0})", "({0}).to(dtype)", "tl.cast({0}, FLOAT)",
              lambda g, y, x: (None,),
              lambda m, x: x, lambda s, x: x, True),
]

_FUNCTIONS = [
    Primitive("exp", "float", "exp({0})", "torch.exp({0})", "exp({0})", lambda g, y, x: (g * y,),
              lambda m, x: m.exp(x), lambda s, x: s.exp(x),
              doc="e to the x."),
    Primitive("exp2", "float", "exp2({0})", "torch.exp2({0})", "tl.exp2({0})",
              lambda g, y, x: (g * (y * math.log(2.0)),), lambda m, x: m.mpf(2) ** x, lambda s, x: 2**x,
              doc="2 to the x."),
    Primitive("log", "float", "log({0})", "torch.log({0})", "tl.log({0})", lambda g, y, x: (g / x,),
              lambda m, x: m.log(x), lambda s, x: s.log(x),
              doc="Natural logarithm."),
    Primitive("log1p", "float", "log1p({0})", "torch.log1p({0})", "log1p({0})",
              lambda g, y, x: (g / (x + 1.0),),
              lambda m, x: m.log1p(x), lambda s, x: s.log(1 + x),
              doc="log(1 + x), exact for small x."),
    Primitive("expm1", "float", "expm1({0})", "torch.expm1({0})", "expm1({0})",
              lambda g, y, x: (g * (y + 1.0),),
              lambda m, x: m.expm1(x), lambda s, x: s.exp(x) - 1,
              doc="exp(x) - 1, exact for small x."),
    # the second is exp of the first, which is at hand: beside it expm1 is a polynomial and a selection
    Primitive("expm1_of", "float", "expm1({0}, by {1})", "torch.expm1({0})", "expm1_of({0}, {1})",
              lambda g, y, x, u: (g * (y + 1.0), None),
              lambda m, x, u: m.expm1(x), lambda s, x, u: s.exp(x) - 1),
    Primitive("sqrt", "float", "sqrt({0})", "torch.sqrt({0})", "sqrt({0})",
              lambda g, y, x: (g / (2.0 * y),),
              lambda m, x: m.sqrt(x), lambda s, x: s.sqrt(x),
              doc="Square root; its slope at 0 is infinite, as torch's."),
    # sf.sqrt(x, max_slope): the root, whose slope is that at `floor` below it
    Primitive("capped_sqrt", "float", "sqrt({0}, slope as from {1})", "torch.sqrt({0})", "near_sqrt({0})",
              lambda g, y, x, floor: (g * (0.5 * x.call("maximum", floor).call("rsqrt")), None),
              lambda m, x, floor: m.sqrt(x), lambda s, x, floor: s.sqrt(x)),
    Primitive("rsqrt", "float", "rsqrt({0})", "torch.rsqrt({0})", "rsqrt({0})",
              lambda g, y, x: (-0.5 * g * (y * y * y),),
              lambda m, x: 1 / m.sqrt(x), lambda s, x: 1 / s.sqrt(x),
              doc="1 / sqrt(x)."),
    Primitive("sigmoid", "float", "sigmoid({0})", "torch.sigmoid({0})", "sigmoid({0})",
              lambda g, y, x: (g * ((1.0 - y) * y),),
              _logistic, lambda s, x: 1 / (1 + s.exp(-x)),
              doc="1 / (1 + exp(-x))."),
    # torch's softplus is the identity above 20, in value and slope
    Primitive("softplus", "float", "softplus({0})", "torch.nn.functional.softplus({0})", "softplus({0})",
              lambda g, y, x: (g * (x > 20.0).call("where", 1.0, x.call("sigmoid")),),
              lambda m, x: m.log1p(m.exp(x)), lambda s, x: s.log(1 + s.exp(x)),
              doc="log(1 + exp(x)); the identity above 20, as torch's."),
    Primitive("silu", "float", "silu({0})", "torch.nn.functional.silu({0})", "silu({0})",
              lambda g, y, x: (g * _silu_slope(x),),
              lambda m, x: x * _logistic(m, x), lambda s, x: x / (1 + s.exp(-x)),
              doc="x sigmoid(x)."),
    Primitive("gelu", "float", "gelu({0})", "torch.nn.functional.gelu({0})", "gelu({0})",
              lambda g, y, x: (g * _gelu_slope(x),),
              lambda m, x: x * (1 + m.erf(x / m.sqrt(2))) / 2,
              lambda s, x: x * (1 + s.erf(x / s.sqrt(2))) / 2,
              doc="x times the normal distribution function of x (the erf form)."),
    Primitive("erf", "float", "erf({0})", "torch.erf({0})", "tl.erf({0})",
              lambda g, y, x: (g * ((-(x * x)).call("exp") * (2.0 / _SQRT_PI)),),
              lambda m, x: m.erf(x), lambda s, x: s.erf(x),
              doc="The error function."),
    Primitive("tanh", "float", "tanh({0})", "torch.tanh({0})", "tanh({0})",
              lambda g, y, x: (g * (1.0 - y * y),),
              lambda m, x: m.tanh(x), lambda s, x: s.tanh(x),
              doc="Hyperbolic tangent."),
    Primitive("sin", "float", "sin({0})", "torch.sin({0})", "tl.sin({0})",
              lambda g, y, x: (g * x.call("cos"),),
              lambda m, x: m.sin(x), lambda s, x: s.sin(x),
              doc="Sine of x in radians."),
    Primitive("cos", "float", "cos({0})", "torch.cos({0})", "tl.cos({0})",
              lambda g, y, x: (-g * x.call("sin"),),
              lambda m, x: m.cos(x), lambda s, x: s.cos(x),
              doc="Cosine of x in radians."),
]

_BOOLEAN = [
    Primitive("lt", "compare", "{0} < {1}", "{0} < {1}", "{0} < {1}", None, lambda m, a, b: a < b,
              lambda s, a, b: s.Lt(a, b), True, True),
    Primitive("le", "compare", "{0} <= {1}", "{0} <= {1}", "{0} <= {1}", None, lambda m, a, b: a <= b,
              lambda s, a, b: s.Le(a, b), True, True),
    Primitive("gt", "compare", "{0} > {1}", "{0} > {1}", "{0} > {1}", None, lambda m, a, b: a > b,
              lambda s, a, b: s.Gt(a, b), True, True),
    Primitive("ge", "compare", "{0} >= {1}", "{0} >= {1}", "{0} >= {1}", None, lambda m, a, b: a >= b,
              lambda s, a, b: s.Ge(a, b), True, True),
    Primitive("eq", "compare", "{0} == {1}", "{0} == {1}", "{0} == {1}", None, lambda m, a, b: a == b,
              lambda s, a, b: s.Eq(a, b), True, True),
    Primitive("ne", "compare", "{0} != {1}", "{0} != {1}", "{0} != {1}", None, lambda m, a, b: a != b,
              lambda s, a, b: s.Ne(a, b), True, True),
    Primitive("and", "logic", "{0} & {1}", "{0} & {1}", "{0} & {1}", None, lambda m, a, b: a and b,
              lambda s, a, b: s.And(a, b), True, True,
              doc="Both conditions."),
    Primitive("or", "logic", "{0} | {1}", "{0} | {1}", "{0} | {1}", None, lambda m, a, b: a or b,
              lambda s, a, b: s.Or(a, b), True, True,
              doc="Either condition."),
    Primitive("xor", "logic", "{0} ^ {1}", "{0} ^ {1}", "{0} ^ {1}", None, lambda m, a, b: a != b,
              lambda s, a, b: s.Xor(a, b), True, True),
    Primitive("not", "logic", "~{0}", "~{0}", "{0} == 0",
              None, lambda m, x: not x, lambda s, x: s.Not(x), True,
              doc="The opposite of a condition."),
]
# fmt: on

TABLE: dict[str, Primitive] = {row.name: row for row in (*_ARITHMETIC, *_FUNCTIONS, *_BOOLEAN)}


def primitive(name: str) -> Primitive:
    """The row of a primitive; an unknown name lists the known ones."""
    row = TABLE.get(name)
    if row is None:
        raise ScanforgeError(
            f"There is no primitive {name!r}. The primitives are: {', '.join(sorted(TABLE))}."
        )
    return row
