"""Program -> the text of a Triton function of row tensors `[BD]`, one lane a thread."""

from __future__ import annotations

import keyword

from scanforge.emit.folding import Folder, Locals
from scanforge.emit.form import Form
from scanforge.emit.triton_maths import HELPERS
from scanforge.ir.primitives import primitive
from scanforge.ir.program import Line, Number, Program

RESERVED = frozenset({*keyword.kwlist, *HELPERS, "tl", "triton", "FLOAT", "INT", "NVIDIA", "float"})


# powers that are exact, or nearly so, by other means; torch takes the same apart
_POWERS = {
    0.5: "sqrt({0})",
    -0.5: "rsqrt({0})",
    -1.0: "reciprocal({0})",
    -2.0: "reciprocal(square({0}))",
    1.0: "({0})",
    2.0: "square({0})",
    3.0: "cube({0})",
}


def function(program: Program, name: str, doc: str) -> str:
    """`@triton.jit def name(inputs): ... return outputs`, in the program's order."""
    writer = _TritonFolder(program)
    body = [f"    {line.var.name} = {text}" for line, text in writer.statements()]
    results = ", ".join(text for _, text in writer.results())
    head = f"@triton.jit\ndef {name}({', '.join(writer.name(v.name) for v in program.inputs)}):"
    return "\n".join([head, f'    """{doc}"""', *body, f"    return {results}"]) + "\n"


def literal(value: Number) -> str:
    """A number as Triton's Python reads it."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return f'float("{value!r}")'
    return f"({value!r})" if value < 0 else repr(value)


class _TritonFolder(Folder):
    def __init__(self, program: Program) -> None:
        names = [*(v.name for v in program.inputs), *(line.var.name for line in program.lines)]
        self.locals = Locals(names, RESERVED)
        super().__init__(program)

    def name(self, name: str) -> str:
        return self.locals[name]

    def template(self, op: str) -> str:
        return primitive(op).triton

    def expression(self, line: Line) -> str:
        power = self.numbers.get(line.args[1]) if line.op == "pow" else None
        if power not in _POWERS:
            return super().expression(line)
        return _POWERS[power].format(self.operand(line.args[0], line))

    def number(self, name: str, line: Line | None) -> str:
        """A Python number where a tensor beside it decides the dtype, else a tensor of that dtype."""
        kind, value = self.variables[name].kind, literal(self.numbers[name])
        if line is not None and self.takes_literal(line):
            return value
        dtype = {"float": "FLOAT", "int": "INT", "bool": "tl.int1"}[kind]
        alone = line is not None or not self.program.inputs
        shape = "()" if alone else f"{self.name(self.program.inputs[0].name)}.shape"
        return f"tl.full({shape}, {value}, {dtype})"

    def takes_literal(self, line: Line) -> bool:
        """As everywhere, but a helper function takes tensors only."""
        plain = not self.template(line.op).partition("(")[0].isidentifier()  # operators and tl.where
        return plain and super().takes_literal(line)


def block_function(program: Program, name: str, doc: str, form: Form) -> str:
    """The same of values over whole axes and lanes; `live_<axis>` conditions follow the program's inputs."""
    writer = _BlockFolder(program, form)
    padded = [f"live_{a}" for a, n in zip(form.whole, form.sizes, strict=True) if n & (n - 1)]
    body = [f"    {line.var.name} = {text}" for line, text in writer.statements()]
    results = ", ".join(text for _, text in writer.results())
    arguments = [*(writer.name(v.name) for v in program.inputs), *padded]
    head = f"@triton.jit\ndef {name}({', '.join(arguments)}):"
    return "\n".join([head, f'    """{doc}"""', *body, f"    return {results}"]) + "\n"


class _BlockFolder(_TritonFolder):
    """Sums over whole axes stand in the text; entries that only fill a power of two are left out."""

    def __init__(self, program: Program, form: Form) -> None:
        self.form = form
        super().__init__(program)

    def sum(self, line: Line) -> str:
        text = self.operand(line.args[0], None)
        for axis in line.over:
            k = self.form.whole.index(axis)
            if axis not in self.variables[line.args[0]].axes:
                text = f"({text}) * {float(self.form.sizes[k])!r}"
                continue
            if self.form.sizes[k] & (self.form.sizes[k] - 1):
                text = f"tl.where(live_{axis}, {text}, 0.0)"
            text = f"tl.sum({text}, {k}, keep_dims=True)"
        return text

    def number(self, name: str, line: Line | None) -> str:
        if line is not None:
            return super().number(name, line)
        kind = {"float": "FLOAT", "int": "INT", "bool": "tl.int1"}[self.variables[name].kind]
        ones = ", ".join("1" * (len(self.form.whole) + 1))
        return f"tl.full([{ones}], {literal(self.numbers[name])}, {kind})"
