"""What user code sees while a method is traced: Values that write lines into a Builder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scanforge.ir.program import Number, Var
from scanforge.ir.unknown import Unknown, foreign, location

if TYPE_CHECKING:
    from scanforge.ir.builder import Builder

__all__ = ["Value", "foreign", "location"]


class Value(Unknown):
    """A symbolic number of one lane. Arithmetic on it writes a line; it has no truth value."""

    __slots__ = ("builder", "number", "var")
    __hash__ = object.__hash__

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

    def origin(self) -> tuple[str, str]:
        """The program's name, and the right-hand side that made this value, or its name."""
        numbers = {line.var.name: repr(line.value) for line in self.builder.lines if line.op == "const"}
        line = next((x for x in self.builder.lines if x.var == self.var), None)
        if line is None:
            return self.builder.name, self.var.name
        return self.builder.name, replace(line, args=tuple(numbers.get(a, a) for a in line.args)).expression()

    def __repr__(self) -> str:
        return f"Value({self.var})"


def _binary(op: str, left: Value, right: Any) -> Any:
    """Let a richer operand (a complex pair) take over, as Python's protocol wants."""
    if hasattr(right, "real_part"):
        return NotImplemented
    return left.call(op, right)
