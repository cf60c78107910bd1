"""What a traced number cannot do, since its value is not known yet: each told with the line to write."""

from __future__ import annotations

import numbers
import operator
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from scanforge.errors import TraceError
from scanforge.ir.method import current
from scanforge.ir.primitives import TABLE

_LOGIC = {"and": "logical_and", "or": "logical_or", "not": "logical_not"}
_FUNCTIONS = sorted(
    {"conj", "imag", "real", *(_LOGIC.get(n, n) for n, row in TABLE.items() if row.doc)}
)  # of sf, for a method
_SPELT = {
    "relu": "sf.maximum(x, 0.0)",
    "clamp": "sf.minimum(sf.maximum(x, low), high)",
    "clip": "sf.minimum(sf.maximum(x, low), high)",
    "square": "x * x",
    "reciprocal": "1 / x",
    "absolute": "sf.abs(x)",
    "min": "sf.minimum(a, b)",
    "max": "sf.maximum(a, b)",
}
_SIGNS: dict[str, Callable[..., Any]] = {  # NumPy's names of what Python writes as a sign
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "power": operator.pow, "negative": operator.neg, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip
_ONE_LANE = "A value is one lane's number: declare one Element or State for each component."


class NoAttribute(TraceError, AttributeError):
    """A TraceError that `hasattr` and `getattr` with a default understand."""


def location() -> str:
    """file:line of the nearest frame that is neither the tracer's own nor a library's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _internal(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _internal(module: str) -> bool:
    package = module.split(".")[0]
    return package in {"contextlib", "numpy", "torch"} or (
        package == "scanforge" and not module.startswith("scanforge.operators")
    )


def declare() -> str:
    """What to write for a tensor that a method reads."""
    line = 'w = sf.Input("d")' if current() else "w = sf.Element(identity=...)"
    axes = ' (its axes by name, "" for a single number)' if current() else ""
    return (
        f"Declare it: write `{line}` in the class{axes}, use `self.w`, and pass the tensor by keyword, as in "
        "sf.scan(..., w=tensor)."
    )


def foreign(operand: Any) -> str:
    """What to say of an operand that is neither a Value nor a number."""
    kind = type(operand).__name__
    if hasattr(operand, "shape") and hasattr(operand, "dtype"):
        constant = " For a constant, write its number: w.item()." if tuple(operand.shape) == () else ""
        return (
            f"uses a {kind} of shape {tuple(operand.shape)} as an operand, and a method can read numbers and "
            f"declared fields only. {declare()}{constant}"
        )
    if isinstance(operand, complex):
        return (
            f"uses the complex number {operand!r} beside a real value. Pass complex tensors, or keep "
            "real and imaginary parts apart as sf.operators.ComplexAffine does."
        )
    return (
        f"uses a {kind} as an operand, and a method can use numbers, declared fields and the functions of sf "
        "(sf.exp, sf.where, ...) only."
    )


def instead_of(name: str) -> str:
    """What to write in a method for the function of this name of torch, NumPy or math."""
    name = {"true_divide": "div", "divide": "div", "subtract": "sub", "multiply": "mul"}.get(name, name)
    if name in _FUNCTIONS:
        return f"Write sf.{name} instead."
    if name in _SPELT:
        return f"Write {_SPELT[name]} instead."
    if name in TABLE and name not in _LOGIC:
        return f"Write {TABLE[name].text.format('a', 'b')} instead."
    return f"sf has no {name}: write it with the functions that it has, {', '.join(_FUNCTIONS)}."


def _refusing(what: str, instead: str) -> Any:
    def method(self: Unknown, *_: object, **__: object) -> NoReturn:
        self.refuse(what, instead)

    return method


class Unknown:
    """Base of the values that a method sees while it is traced."""

    __slots__ = ()
    __hash__ = object.__hash__

    def origin(self) -> tuple[str, str]:
        """The name of the program that is traced, and how the value reads there."""
        raise NotImplementedError

    def refuse(self, what: str, instead: str) -> NoReturn:
        """Raise the error of a method that needs the number: `what` it does with `{}`, and what to write."""
        program, name = self.origin()
        raise TraceError(
            f"{program} ({location()}) {what.format(f'`{name}`')}, whose number is not known while the "
            f"method is traced. {instead}"
        )

    __bool__ = _refusing(
        "takes the truth value (if, and, or, not, min, max, a chain like a < b < c) of {}",
        "Write sf.where(condition, a, b) for a choice, sf.minimum or sf.maximum for min or max, "
        "and & | ~ for logic.",
    )
    __float__ = __complex__ = _refusing(
        "gives {} to Python's math or float()", "Write sf.exp, sf.log, sf.sqrt, ... instead."
    )
    __int__ = __round__ = __trunc__ = __floor__ = __ceil__ = _refusing(
        "rounds {} to an int", "Write sf.floor(x) instead."
    )
    __index__ = _refusing("uses {} as an index or a count", _ONE_LANE)
    __getitem__ = __setitem__ = __delitem__ = _refusing("indexes {}", _ONE_LANE)
    __iter__ = __len__ = _refusing("iterates over {}", _ONE_LANE)
    __matmul__ = __rmatmul__ = _refusing("multiplies {} as a matrix", _ONE_LANE)
    __mod__ = __rmod__ = __divmod__ = __rdivmod__ = _refusing(
        "takes a remainder of {}", "Write a - b * sf.floor(a / b) for a % b."
    )
    __floordiv__ = __rfloordiv__ = _refusing("divides {} with //", "Write sf.floor(a / b) for a // b.")
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refusing(
        "shifts the bits of {}", "Write a product or a quotient."
    )
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refusing(
        "uses & | ^ or ~ on {}", "Compare first, as in x > 0."
    )
    __array__ = _refusing(
        "gives {} to NumPy", "Write the function of sf with the same name, as in sf.exp(x)."
    )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or name in {"builder", "number", "var", "real_part", "imag_part"}:
            raise AttributeError(name)
        program, shown = self.origin()
        raise NoAttribute(
            f"{program} ({location()}) reads .{name} of `{shown}`, and a value is one lane's number without "
            f"methods and shape. {instead_of(name)}"
        )

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **_: object) -> Any:
        name = function.__name__
        for x in inputs:
            if not isinstance(x, Unknown | numbers.Number):
                raise TraceError(f"{self.origin()[0]} ({location()}) {foreign(x)}")
        if name in _SIGNS and method == "__call__":  # of a NumPy number, as in np.float64(2) * x
            return _SIGNS[name](*(x.item() if hasattr(x, "item") else x for x in inputs))
        self.refuse(f"gives {{}} to numpy.{name}", instead_of(name))

    def __array_function__(self, function: Any, *_: object) -> NoReturn:
        self.refuse(f"gives {{}} to numpy.{function.__name__}", instead_of(function.__name__))

    @classmethod
    def __torch_function__(cls, function: Any, types: object, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(function, "__name__", "?").strip("_")
        given = list(_flat([*args, *(kwargs or {}).values()]))
        first = next(x for x in given if isinstance(x, Unknown))
        tensor = next((x for x in given if hasattr(x, "shape")), None)
        if tensor is not None:
            raise TraceError(f"{first.origin()[0]} ({location()}) {foreign(tensor)}")
        first.refuse(f"gives {{}} to torch.{name}", instead_of(name))


def _flat(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item
