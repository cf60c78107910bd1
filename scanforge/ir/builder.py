"""The Builder: collects the lines that Values write, each typed as it is written."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from scanforge.errors import TraceError
from scanforge.ir.primitives import Primitive, primitive
from scanforge.ir.program import Line, Number, Program, Var, fresh
from scanforge.ir.typing import axes_of, signature
from scanforge.ir.value import Value, foreign, location

_FOLDED = frozenset({"add", "sub", "mul", "neg"})  # on numbers alone: derivative rules write p - 1, 2 * 0.5


class Builder:
    """Collects the lines of one Program. `where` stands for file:line when no user wrote them."""

    def __init__(self, name: str, axes: tuple[str, ...] = (), where: str | None = None) -> None:
        self.name, self.axes = name, axes
        self.inputs: list[Var] = []
        self.lines: list[Line] = []
        self._names: set[str] = set()
        self._numbers: dict[tuple[str, str], Value] = {}
        self._where = where

    def input(self, name: str, kind: str, axes: tuple[str, ...] = ()) -> Value:
        """A new input of the program."""
        var = Var(name, kind, axes)
        self._names.add(name)
        self.inputs.append(var)
        return Value(self, var)

    def const(self, number: Number, kind: str) -> Value:
        """A number; equal numbers share a line."""
        number = {"float": float, "int": int, "bool": bool}[kind](number)
        known = self._numbers.get((kind, repr(number)))
        if known is None:
            known = self._numbers[kind, repr(number)] = self._add("const", (), kind, (), value=number)
        return known

    def call(self, op: str, *args: Any) -> Value:
        """One primitive applied to Values and numbers."""
        row = primitive(op)
        kinds = [_kind(a, self) for a in args]
        known = [k for k in kinds if k]
        weak = [k or _literal_kind(a, known) for a, k in zip(args, kinds, strict=True)]
        wanted, result = self._typed(row, weak)
        values = [self._lift(a, kind) for a, kind in zip(args, wanted, strict=True)]
        if op in _FOLDED and all(v.number is not None for v in values):
            return self.const(row.number(None, *(v.number for v in values)), result)
        if op == "where" and values[0].number is not None:  # a flag of the configuration, say
            return values[1] if values[0].number else values[2]
        axes = axes_of(row, self.axes, [v.var.axes for v in values])
        return self._add(op, tuple(v.var.name for v in values), result, axes)

    def sum(self, value: Value, over: tuple[str, ...]) -> Value:
        """Sum over axes; one that the operand lacks multiplies by its size."""
        axes = tuple(a for a in value.var.axes if a not in over)
        return self._add("sum", (value.var.name,), value.var.kind, axes, over=over)

    def finish(self, outputs: Mapping[str, Value]) -> Program:
        """The program that was written."""
        for name, value in outputs.items():
            if value.builder is not self:
                raise TraceError(f"{self.name} gives {name} {_another(value, self)}")
        named = tuple((name, value.var.name) for name, value in outputs.items())
        return Program(self.name, self.axes, tuple(self.inputs), tuple(self.lines), named)

    def inline(self, program: Program, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Write another program's lines here; returns its outputs."""
        names = self.replay(program, inputs)
        return {name: names[variable] for name, variable in program.outputs}

    def replay(self, program: Program, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """Write another program's lines here; returns the value of each of its variables."""
        names = dict(inputs)
        for line in program.lines:
            with self.at(line.where):
                if line.value is not None:
                    names[line.var.name] = self.const(line.value, line.var.kind)
                elif line.op == "sum":
                    names[line.var.name] = self.sum(names[line.args[0]], line.over)
                else:
                    names[line.var.name] = self.call(line.op, *(names[a] for a in line.args))
        return names

    @contextmanager
    def at(self, where: str) -> Iterator[None]:
        """Lines written inside carry this file:line instead of the caller's."""
        saved, self._where = self._where, where
        try:
            yield
        finally:
            self._where = saved

    def _typed(self, row: Primitive, kinds: list[str]) -> tuple[tuple[str, ...], str]:
        try:
            return signature(row, kinds)
        except TraceError as error:
            raise TraceError(f"{self.name} ({location()}): {error}") from None

    def _lift(self, operand: Any, kind: str) -> Value:
        if not isinstance(operand, Value):
            return self.const(operand, kind)
        if operand.var.kind == kind:
            return operand
        if operand.number is not None:
            return self.const(operand.number, kind)
        return self._add("to_float", (operand.var.name,), "float", operand.var.axes)

    def _add(self, op: str, args: tuple[str, ...], kind: str, axes: tuple[str, ...], **rest: Any) -> Value:
        name = fresh(f"v{len(self.lines)}", self._names)
        self._names.add(name)
        where = location() if self._where is None else self._where
        self.lines.append(Line(Var(name, kind, axes), op, args, where=where, **rest))
        return Value(self, self.lines[-1].var, rest.get("value"))


def _kind(operand: Any, builder: Builder) -> str:
    """The kind of a Value, "" for a number; anything else is refused."""
    if isinstance(operand, Value):
        if operand.builder is not builder:
            raise TraceError(f"{builder.name} ({location()}) uses {_another(operand, builder)}")
        return operand.var.kind
    if isinstance(operand, numbers.Real | bool):
        return ""
    raise TraceError(f"{builder.name} ({location()}) {foreign(operand)}")


def _another(value: Value, builder: Builder) -> str:
    name = value.builder.name
    owner = f"an earlier trace of {name}" if name == builder.name else name
    return (
        f"a value that belongs to {owner}, and a method may use its own arguments and fields only. "
        "Keep no value between methods: compute it again, or declare it as an element or a state."
    )


def _literal_kind(number: Any, known: list[str]) -> str:
    if isinstance(number, bool):
        return "bool"
    whole = isinstance(number, numbers.Integral)
    return (
        "int"
        if whole and "float" not in known and "int" in known
        else "int"
        if whole and not known
        else "float"
    )
