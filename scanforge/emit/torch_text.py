"""Program -> the text of a PyTorch function. Tensors have all axes in order, size 1 for one they lack."""

from __future__ import annotations

import keyword

from scanforge.emit.folding import Folder, Locals
from scanforge.ir.primitives import primitive
from scanforge.ir.program import Line, Number, Program

RESERVED = frozenset(
    {*keyword.kwlist, "torch", "inf", "nan", "element", "apply", "combine", "prefixes", "readout", "run"}
    | {"list", "zip", "reversed", "steps", "reverse"}
)


def function(program: Program, name: str, doc: str) -> str:
    """`def name(inputs): ... return outputs`, in the program's order."""
    writer = _TorchFolder(program)
    body = [f"    {line.var.name} = {text}" for line, text in writer.statements()]
    results = [text for _, text in writer.results()]
    returned = f"({results[0]},)" if len(results) == 1 else ", ".join(results) or "()"
    head = f"def {name}({', '.join(writer.name(v.name) for v in program.inputs)}):"
    return "\n".join([head, f'    """{doc}"""', *body, f"    return {returned}"]) + "\n"


def literal(value: Number) -> str:
    """A number as Python writes it; inf and nan are names of the generated module."""
    return f"({value!r})" if value < 0 else repr(value)


class _TorchFolder(Folder):
    def __init__(self, program: Program) -> None:
        names = [*(v.name for v in program.inputs), *(line.var.name for line in program.lines)]
        self.locals = Locals(names, RESERVED)
        self.inputs = {v.name for v in program.inputs}
        super().__init__(program)

    def name(self, name: str) -> str:
        return self.locals[name]

    def template(self, op: str) -> str:
        like = self.like("float")
        return primitive(op).torch.replace("(dtype)", f"({like}.dtype)" if like else "(torch.float64)")

    def results(self) -> list[tuple[str, str]]:
        """Each output; a number has the shape of what bears its name: a state, an element's leaf."""
        found = []
        for output, text in super().results():
            variable = dict(self.program.outputs)[output]
            own = next((n for n in (output, f"later_{output}") if n in self.inputs), None)
            if variable in self.numbers and own is not None:
                text = f"torch.full_like({self.name(own)}, {literal(self.numbers[variable])})"
            found.append((output, text))
        return found

    def number(self, name: str, line: Line | None) -> str:
        """A Python number where a tensor beside it decides the dtype, else a tensor of that dtype."""
        kind, value = self.variables[name].kind, literal(self.numbers[name])
        if line is not None and self.takes_literal(line):
            return value
        like = self.like(kind)
        shape = (
            "()" if line is not None else repr((1,) * len(self.program.axes))
        )  # as a result it has all axes
        if like:
            return f"{like}.new_full({shape}, {value})"
        dtype = {"float": "torch.float64", "int": "torch.int64", "bool": "torch.bool"}[kind]
        device = f", device={self.name(self.program.inputs[0].name)}.device" if self.program.inputs else ""
        return f"torch.full({shape}, {value}, dtype={dtype}{device})"

    def like(self, kind: str) -> str:
        """An input of this kind."""
        return next((self.name(v.name) for v in self.program.inputs if v.kind == kind), "")

    def sum(self, line: Line) -> str:
        """Over axes that the operand has a sum, over others a product with their sizes."""
        operand, axes = self.variables[line.args[0]], self.program.axes
        present = tuple(axes.index(a) for a in line.over if a in operand.axes)
        text = self.operand(line.args[0], None)
        if present:
            text = f"torch.sum({text}, dim={present}, keepdim=True)"
        elif line.args[0] not in self.atoms:
            text = f"({text})"
        for axis in (a for a in line.over if a not in operand.axes):
            owner = next(v.name for v in self.program.inputs if axis in v.axes)
            text = f"{text} * {self.name(owner)}.shape[{axes.index(axis)}]"
        return text
