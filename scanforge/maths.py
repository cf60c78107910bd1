"""The functions that a method may use, lane by lane, of torch's meaning and torch's derivative.

They take Values (what `self.a` is while a method is traced) and Python numbers. All but the few
that know complex values come from the primitive table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from scanforge.errors import TraceError
from scanforge.ir.complex import Complex, is_value, lift, pair, parts
from scanforge.ir.method import current
from scanforge.ir.primitives import TABLE
from scanforge.ir.scan import is_batch
from scanforge.ir.unknown import NoAttribute, location

_LOGIC = {"logical_and": "and", "logical_or": "or", "logical_not": "not"}
_ARGUMENTS = {1: ("x",), 2: ("a", "b"), 3: ("condition", "a", "b")}
_COMPLEX = ["abs", "conj", "exp", "imag", "real", "where"]
_RECURRENCE = ["previous", "segment_start", "sqrt", "sum"]

__all__ = sorted(
    {
        *_COMPLEX,
        *_RECURRENCE,
        *_LOGIC,
        *(row.name for row in TABLE.values() if row.doc and row.name.isidentifier()),
    }
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
    pair = next((a for a in args if isinstance(a, Complex)), None)
    if pair is not None:
        raise TraceError(
            f"sf.{name} ({location()}) has no complex form, and {pair.origin()[0]} got complex tensors. Use "
            "it on sf.real(x), sf.imag(x) or sf.abs(x), or pass real tensors."
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


def sqrt(*args: Any, max_slope: float | None = None) -> Any:
    """Square root; its slope at 0 is infinite, as torch's, or with `max_slope` at most that.

    The slope is then `0.5 / sqrt(max(x, (2 max_slope)^-2))`, in every backend.
    """
    _check_count("sqrt", ("x",), len(args))
    (x,) = args
    if max_slope is None:
        return _call("sqrt", "sqrt", x)
    if isinstance(max_slope, bool) or not isinstance(max_slope, int | float) or not max_slope > 0:
        raise TraceError(
            f"sf.sqrt ({location()}) got max_slope={max_slope!r}, expected a positive number: write "
            "sf.sqrt(x, max_slope=1000.0)."
        )
    _call("sqrt", "sqrt", x)  # its errors
    return x.builder.call("capped_sqrt", x, (2.0 * max_slope) ** -2)


def sum(x: Any = None, axes: Any = None) -> Any:
    """The sum over one axis or several of a recurrence, as in `sf.sum(self.C * self.h, "n")`."""
    if not is_value(x) or not isinstance(axes, str) or not axes.split():
        raise TraceError(
            f"sf.sum ({location()}) takes a value of a method and the names of axes, and got "
            f'{type(x).__name__} and {axes!r}: write sf.sum(self.C * self.h, "n").'
        )
    return lift(lambda part: _sum(part, tuple(axes.split())), x)


def _sum(x: Any, axes: tuple[str, ...]) -> Any:
    builder = parts(x)[0].builder
    if not builder.axes:
        raise TraceError(
            f"{builder.name} ({location()}) sums over {' '.join(axes)}, and an operator works lane by lane: "
            "sums belong in the element or the readout of an sf.Recurrence."
        )
    for axis in axes:
        if axis == "t" or is_batch(axis):
            kept = " ".join(a for a in x.var.axes if a != axis)
            raise TraceError(
                f"{builder.name} ({location()}) sums over {axis}, and a method sees one step of one "
                f"sequence: declare the output without the axis, as in y = sf.Output({kept!r}), which sums "
                "over it."
            )
        if axis not in x.var.axes:
            raise TraceError(
                f"{builder.name} ({location()}) sums over {axis}, and the value has the axes "
                f"{' '.join(x.var.axes) or '(none)'}: name one of them."
            )
    return builder.sum(x, axes)


@_counted
def previous(x: Any) -> Any:
    """The state before the step, in a readout: `sf.previous(self.h)`."""
    method = current()
    known = method.before if method else {}

    def before(part: Any) -> Any:
        name = part.var.name if is_value(part) else ""
        if name not in known:
            raise TraceError(
                f"sf.previous ({location()}) takes a state in a readout, and got something else: write "
                "sf.previous(self.h) with a declared state h."
            )
        return known[name]

    if isinstance(x, Complex):
        return Complex(before(x.real_part), before(x.imag_part))
    return before(x)


@_counted
def segment_start() -> Any:
    """A condition, true at the first step of a segment: of the sequence, and wherever it is reset."""
    method = current()
    if method is None:
        raise TraceError(
            f"sf.segment_start ({location()}) belongs in the element or the readout of an sf.Recurrence."
        )
    method.asked_start = True
    return method.start
