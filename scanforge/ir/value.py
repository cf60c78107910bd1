"""What user code sees while a method is traced: Values that write lines into a Builder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scanforge.errors import TraceError
from scanforge.ir.program import Number, Var

if TYPE_CHECKING:
    from scanforge.ir.builder import Builder


def foreign(operand: Any) -> str:
    """What to say of an operand that is neither a Value nor a number."""
    if hasattr(operand, "shape") and hasattr(operand, "dtype"):
        return (
            f"uses a {type(operand).__name__} of shape {tuple(operand.shape)} as an operand, and a "
            "method can read "
            "numbers and declared fields only. Declare it: write `w = sf.Element(identity=...)` in "
            "the class, "
            "use `self.w`, and pass the tensor by keyword, as in sf.scan(..., w=tensor)."
        )
    return (
        f"uses a {type(operand).__name__} as an operand, and a method can use numbers, declared "
        "fields and the "
        "functions of sf (sf.exp, sf.where, ...) only."
    )


def location() -> str:
    """file:line of the nearest frame that is not the tracer's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _internal(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _internal(module: str) -> bool:
    return (
        module.startswith("scanforge.") and not module.startswith("scanforge.operators")
    ) or module == "contextlib"


class Value:
    """A symbolic number of one lane. Arithmetic on it writes a line; it has no truth value."""

    __slots__ = ("builder", "number", "var")
    __hash__ = object.__hash__
    __array_ufunc__ = None

    def __init__(self, builder: Builder, var: Var, number: Number | None = None) -> None:
        self.builder, self.var, self.number = builder, var, number

    def call(self, op: str, *others: Any) -> Value:
        """Apply a primitive with this value as its first argument."""
        return self.builder.call(op, self, *others)

    def _flipped(self, op: str, other: Any) -> Value:
        return self.builder.call(op, other, self)

    def __add__(self, other: Any) -> Any:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._flipped("add", other)

    def __sub__(self, other: Any) -> Any:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._flipped("sub", other)

    def __mul__(self, other: Any) -> Any:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._flipped("mul", other)

    def __truediv__(self, other: Any) -> Any:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._flipped("div", other)

    def __pow__(self, other: Any) -> Any:
        return _binary("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._flipped("pow", other)

    def __neg__(self) -> Value:
        return self.call("neg")

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return self.call("abs")

    def __invert__(self) -> Value:
        return self.call("not")

    def __and__(self, other: Any) -> Value:
        return self.call("and", other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Value:
        return self.call("or", other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Value:
        return self.call("xor", other)

    __rxor__ = __xor__

    def __lt__(self, other: Any) -> Value:
        return self.call("lt", other)

    def __le__(self, other: Any) -> Value:
        return self.call("le", other)

    def __gt__(self, other: Any) -> Value:
        return self.call("gt", other)

    def __ge__(self, other: Any) -> Value:
        return self.call("ge", other)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return self.call("eq", other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return self.call("ne", other)

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise TraceError(
            f"{self.builder.name} ({location()}) {what} {self.var.name}, whose number is not known while the "
            f"method is traced. {instead}"
        )

    def __bool__(self) -> bool:
        self._refuse(
            "takes the truth value (if, and, or, not, min, max, a chain like a < b < c) of",
            "Write sf.where(condition, a, b) for a choice, sf.minimum or sf.maximum for min or max, "
            "and & | ~ for logic.",
        )

    def __float__(self) -> float:
        self._refuse("asks Python's math or float() for", "Write sf.exp, sf.log, sf.sqrt, ... instead.")

    def __int__(self) -> int:
        self._refuse("asks int() for", "Write sf.floor instead.")

    def __index__(self) -> int:
        self._refuse(
            "uses as an index", "A state has named fields, not indices: declare one Element or State each."
        )

    def __getitem__(self, index: object) -> NoReturn:
        self._refuse(
            "indexes", "A value is one lane's number: declare one Element or State for each component."
        )

    def __iter__(self) -> NoReturn:
        self._refuse(
            "iterates over", "A value is one lane's number: declare one Element or State for each component."
        )

    def __array__(self, *_: object, **__: object) -> NoReturn:
        self._refuse("asks NumPy for", "Write the function of sf with the same name, as in sf.exp(x).")

    @classmethod
    def __torch_function__(cls, function: Any, types: object, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(function, "__name__", "?").strip("_")
        first = next((a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Value)), None)
        if first is None:
            raise TraceError(f"torch.{name} got a list of traced values. Write sf.{name} instead.")
        tensors = [a for a in args if hasattr(a, "shape")]
        if tensors:
            raise TraceError(f"{first.builder.name} ({location()}) {foreign(tensors[0])}")
        first._refuse(f"gives torch.{name} the value", f"Write sf.{name} instead of torch.{name}.")

    def __repr__(self) -> str:
        return f"Value({self.var})"


def _binary(op: str, left: Value, right: Any) -> Any:
    """Let a richer operand (a complex pair) take over, as Python's protocol wants."""
    if hasattr(right, "real_part"):
        return NotImplemented
    return left.call(op, right)
