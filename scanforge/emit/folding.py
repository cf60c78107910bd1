"""Program -> statements: a value that is used once is written in place, so that lines read as a person's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from scanforge.ir.primitives import primitive
from scanforge.ir.program import Line, Program, fresh
from scanforge.prune import drop_guards

WIDTH = 50  # an expression longer than this gets a name
_CALL = (
    9  # binds tightest; then the operators that Python knows, and 0 for those that always want parentheses
)
_BINDS = {"pow": 0, "neg": 3, "mul": 2, "gated": 2, "div": 2, "add": 1, "sub": 1}


class Locals:
    """The local names of one generated function: the user's, one to one, then others from what is left."""

    def __init__(self, names: Iterable[str], reserved: frozenset[str]) -> None:
        self.taken = set(reserved)
        ordered = sorted(dict.fromkeys(names), key=reserved.__contains__)  # ordinary names stay as they are
        self.spelt = {name: self.local(name) for name in ordered}

    def __getitem__(self, name: str) -> str:
        """A user's name as it is spelt in the function."""
        return self.spelt[name]

    def local(self, name: str) -> str:
        """A further name, with underscores until it is free."""
        free = fresh(name, self.taken)
        self.taken.add(free)
        return free


class Folder:
    """Writes a program's lines in order. Subclasses say how names, numbers and primitives are spelt."""

    def __init__(self, program: Program) -> None:
        program = self.program = drop_guards(program)
        self.variables = program.variables()
        self.numbers = program.constants()
        self.uses = Counter(
            [a for line in program.lines for a in line.args] + [v for _, v in program.outputs]
        )
        self.written = {v.name: self.name(v.name) for v in program.inputs}
        self.atoms = set(self.written)
        self.lines = {line.var.name: line for line in program.lines}

    def name(self, name: str) -> str:
        """A user's name as this language spells it."""
        return name

    def template(self, op: str) -> str:
        """The text of a primitive, with {0}, {1}, ... for its operands."""
        return primitive(op).text

    def number(self, name: str, line: Line | None) -> str:
        """A constant as an operand of a line, or as a result (None)."""
        return repr(self.numbers[name])

    def sum(self, line: Line) -> str:
        """A sum over axes."""
        return f"sum({self.operand(line.args[0], None)}, {' '.join(line.over)!r})"

    def statements(self) -> Iterator[tuple[Line, str]]:
        """The lines that get a name, with their expressions."""
        for line in self.program.lines:
            if line.op == "const":
                continue
            text = self.expression(line)
            if self.uses[line.var.name] == 1 and len(text) <= WIDTH:
                self.written[line.var.name] = text
            else:
                self.written[line.var.name] = line.var.name
                self.atoms.add(line.var.name)
                yield line, text

    def results(self) -> list[tuple[str, str]]:
        """Each output with its expression; after `statements`."""
        return [(output, self.operand(variable, None)) for output, variable in self.program.outputs]

    def expression(self, line: Line) -> str:
        """The right-hand side of a line."""
        if line.op == "sum":
            return self.sum(line)
        return self.template(line.op).format(*(self.operand(a, line) for a in line.args))

    def operand(self, name: str, line: Line | None) -> str:
        """A variable inside a line, in parentheses where an operator stands beside it."""
        if name in self.numbers:
            return self.number(name, line)
        text = self.written[name]
        if line is None or name in self.atoms or self.binding(line) == _CALL:
            return text
        inner, outer = self.binding(self.lines[name]), self.binding(line)
        right = name != line.args[0]
        alone = inner == _CALL or (
            inner > 0 and outer > 0 and (inner > outer or (inner == outer and not right))
        )
        return text if alone and not (right and self.lines[name].op == "neg") else f"({text})"

    def takes_literal(self, line: Line) -> bool:
        """Whether a Python number may stand in the line."""
        row = primitive(line.op)
        beside = line.args[1:] if row.kinds == "select" else line.args
        return row.literal and any(a not in self.numbers for a in beside)

    def binding(self, line: Line) -> int:
        """How tightly the line's operator binds its operands in the text."""
        if line.op == "sum" or "(" in self.template(line.op):
            return _CALL
        return _BINDS.get(line.op, 0)


def equations(program: Program, rename: dict[str, str] | None = None) -> list[tuple[str, str, str]]:
    """(name, expression, file:line) of a program as mathematics reads it, for people."""
    folder = Folder(program)
    named = [(line.var.name, text, line.where) for line, text in folder.statements()]
    origin = {line.var.name: line.where for line in program.lines}
    results = [
        ((rename or {}).get(output, output), text, origin.get(variable, ""))
        for (output, text), (_, variable) in zip(folder.results(), program.outputs, strict=True)
    ]
    return named + results
