"""Program -> the text of a Triton function of row tensors `[BD]`, one lane a thread."""

from __future__ import annotations

import keyword

from scanforge.emit.folding import Folder
from scanforge.ir.primitives import primitive
from scanforge.ir.program import Line, Number, Program

_RESERVED = frozenset(
    {
        "tl",
        "triton",
        "FLOAT",
        "INT",
        "T",
        "BD",
        "R",
        "NS",
        "lane",
        "row",
        "mask",
        "outer",
        "tile",
        "step",
        "rerun",
        "float",
    }
)


def safe(name: str) -> str:
    """A user's name as a local name of a kernel."""
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


def function(program: Program, name: str, doc: str) -> str:
    """`@triton.jit def name(inputs): ... return outputs`, in the program's order."""
    writer = _TritonFolder(program)
    body = [f"    {line.var.name} = {text}" for line, text in writer.statements()]
    results = ", ".join(text for _, text in writer.results())
    head = f"@triton.jit\ndef {name}({', '.join(safe(v.name) for v in program.inputs)}):"
    return "\n".join([head, f'    """{doc}"""', *body, f"    return {results}"]) + "\n"


def literal(value: Number) -> str:
    """A number as Triton's Python reads it."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return f'float("{value!r}")'
    return f"({value!r})" if value < 0 else repr(value)


class _TritonFolder(Folder):
    def name(self, name: str) -> str:
        return safe(name)

    def template(self, op: str) -> str:
        return primitive(op).triton

    def number(self, name: str, line: Line | None) -> str:
        """A Python number where a tensor beside it decides the dtype, else a tensor of that dtype."""
        kind, value = self.variables[name].kind, literal(self.numbers[name])
        if line is not None and self.takes_literal(line):
            return value
        dtype = {"float": "FLOAT", "int": "INT", "bool": "tl.int1"}[kind]
        shape = "()" if line is not None else f"{safe(self.program.inputs[0].name)}.shape"
        return f"tl.full({shape}, {value}, {dtype})"

    def takes_literal(self, line: Line) -> bool:
        """Whether a Python number may stand in the line."""
        row = primitive(line.op)
        beside = line.args[1:] if row.kinds == "select" else line.args
        plain = not self.template(line.op).partition("(")[0].isidentifier()  # operators and tl.where
        return plain and row.literal and any(a not in self.numbers for a in beside)
