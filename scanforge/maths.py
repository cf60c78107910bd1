"""The functions that a method may use, lane by lane, of torch's meaning and torch's derivative.

They take Values (what `self.a` is while a method is traced) and Python numbers. All but the few
that know complex values come from the primitive table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from scanforge.errors import TraceError
from scanforge.ir.complex import Complex, is_value, lift, pair
from scanforge.ir.primitives import TABLE
from scanforge.ir.unknown import NoAttribute, location

_LOGIC = {"logical_and": "and", "logical_or": "or", "logical_not": "not"}
_ARGUMENTS = {1: ("x",), 2: ("a", "b"), 3: ("condition", "a", "b")}
_COMPLEX = ["abs", "conj", "exp", "imag", "real", "where"]

__all__ = sorted(
    {*_COMPLEX, *_LOGIC, *(row.name for row in TABLE.values() if row.doc and row.name.isidentifier())}
)
__all__ = [name for name in __all__ if name not in _LOGIC.values()]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _function(name)
    if name.startswith("_"):  # a question of Python's own
        raise AttributeError(f"module 'scanforge.maths' has no attribute {name!r}")
    raise NoAttribute(f"sf ({location()}) has no {name}. For methods it has {', '.join(__all__)}: use these.")


@cache
def _function(name: str) -> Callable[..., Any]:
    op = _LOGIC.get(name, name)

    def function(*args: Any) -> Any:
        return _call(op, name, *args)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = TABLE[op].doc
    return function


def _call(op: str, name: str, *args: Any) -> Any:
    _check_count(name, _ARGUMENTS[TABLE[op].text.count("{")], len(args))
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


def _check_count(name: str, wanted: tuple[str, ...], got: int) -> None:
    if got != len(wanted):
        values = "1 value" if len(wanted) == 1 else f"{len(wanted)} values"
        raise TraceError(
            f"sf.{name} ({location()}) takes {values}, and got {got}: write sf.{name}({', '.join(wanted)})."
        )


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with our own error for a wrong number of values."""
    wanted = function.__code__.co_varnames[: function.__code__.co_argcount]

    @wraps(function)
    def counted(*args: Any, **named: Any) -> Any:
        _check_count(function.__name__, wanted, len(args) + len(named))
        return function(*args, **named)

    return counted


@_counted
def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b; the other branch gets gradient 0."""

    def choose(x: Any, y: Any) -> Any:
        if isinstance(condition, bool) and not (is_value(x) or is_value(y)):
            return x if condition else y
        return _call("where", "where", condition, x, y)

    return lift(choose, a, b)


@_counted
def exp(x: Any) -> Any:
    """e to the x, for complex x too."""
    return x.exp() if isinstance(x, Complex) else _call("exp", "exp", x)


@_counted
def abs(x: Any) -> Any:
    """Absolute value, for complex x the modulus; its slope at 0 is 0."""
    return x.__abs__() if isinstance(x, Complex) else _call("abs", "abs", x)


@_counted
def real(x: Any) -> Any:
    """The real part."""
    return pair(x).real_part


@_counted
def imag(x: Any) -> Any:
    """The imaginary part."""
    return pair(x).imag_part


@_counted
def conj(x: Any) -> Any:
    """The complex conjugate."""
    return x.conj() if isinstance(x, Complex) else x
