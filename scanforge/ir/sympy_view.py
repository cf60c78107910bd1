"""Programs as SymPy expressions: a view for reading and for algebra, never what is printed as code."""

from __future__ import annotations

from typing import Any

from scanforge.ir.interpret import interpret
from scanforge.ir.primitives import primitive
from scanforge.ir.program import Number, Program


def to_sympy(program: Program) -> dict[str, Any]:
    """One expression per output, over real symbols named as the inputs."""
    import sympy

    make = {"float": {"real": True}, "int": {"integer": True}, "bool": {}}
    symbols = {v.name: sympy.Symbol(v.name, **make[v.kind]) for v in program.inputs}
    return interpret(program, symbols, _Expressions(sympy))


class _Expressions:
    def __init__(self, sympy: Any) -> None:
        self.sympy = sympy

    def const(self, number: Number, kind: str) -> Any:
        if kind == "bool":
            return self.sympy.true if number else self.sympy.false
        return self.sympy.Integer(number) if float(number).is_integer() else self.sympy.sympify(number)

    def call(self, op: str, *args: Any) -> Any:
        return primitive(op).sympy(self.sympy, *args)
