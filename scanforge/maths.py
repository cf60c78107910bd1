"""The functions that a method may use, lane by lane, of torch's meaning and torch's derivative.

They take Values (what `self.a` is while a method is traced) and Python numbers. All but the few
that know complex values come from the primitive table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from scanforge.errors import TraceError
from scanforge.ir.complex import Complex, is_value, lift, pair
from scanforge.ir.primitives import TABLE
from scanforge.ir.value import location

_LOGIC = {"logical_and": "and", "logical_or": "or", "logical_not": "not"}
_COMPLEX = ["abs", "conj", "exp", "imag", "real", "where"]

__all__ = sorted(
    {*_COMPLEX, *_LOGIC, *(row.name for row in TABLE.values() if row.doc and row.name.isidentifier())}
)
__all__ = [name for name in __all__ if name not in _LOGIC.values()]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'scanforge.maths' has no attribute {name!r}")
    return _function(name)


@cache
def _function(name: str) -> Callable[..., Any]:
    op = _LOGIC.get(name, name)

    def function(*args: Any) -> Any:
        return _call(op, name, *args)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = TABLE[op].doc
    return function


def _call(op: str, name: str, *args: Any) -> Any:
    if len(args) != (wanted := TABLE[op].text.count("{")):
        raise TraceError(f"sf.{name} ({location()}) takes {wanted} values, and got {len(args)}.")
    first = next((a for a in args if is_value(a)), None)
    if first is None:
        raise TraceError(
            f"sf.{name} ({location()}) works on the values of a method, and got "
            f"{', '.join(type(a).__name__ for a in args)}. Use it inside combine or apply; "
            f"for a plain number write math.{name} and the like, for a tensor torch.{name}."
        )
    if any(isinstance(a, Complex) for a in args):
        raise TraceError(
            f"sf.{name} ({location()}) has no complex form. Use it on sf.real(x), sf.imag(x) or sf.abs(x)."
        )
    return first.builder.call(op, *args)


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b; the other branch gets gradient 0."""
    return lift(lambda x, y: _call("where", "where", condition, x, y), a, b)


def exp(x: Any) -> Any:
    """e to the x, for complex x too."""
    return x.exp() if isinstance(x, Complex) else _call("exp", "exp", x)


def abs(x: Any) -> Any:
    """Absolute value, for complex x the modulus; its slope at 0 is 0."""
    return x.__abs__() if isinstance(x, Complex) else _call("abs", "abs", x)


def real(x: Any) -> Any:
    """The real part."""
    return pair(x).real_part


def imag(x: Any) -> Any:
    """The imaginary part."""
    return pair(x).imag_part


def conj(x: Any) -> Any:
    """The complex conjugate."""
    return x.conj() if isinstance(x, Complex) else x
