"""Tidying a program changes no value."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scanforge.emit.torch_text import function
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.primitives import TABLE
from scanforge.ir.program import Line, Program, Var
from scanforge.prune import drop_dead, share, tidy

INF = math.inf
quick = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def programs(draw) -> Program:
    """A random program with repeated, mirrored, useless and dead lines."""
    inputs = tuple(Var(n, "float") for n in "abc")
    kinds, lines = {v.name: "float" for v in inputs}, []

    def pick(kind: str) -> str:
        return draw(st.sampled_from([n for n, k in kinds.items() if k == kind]))

    def add(op: str, args: tuple[str, ...], kind: str, value=None) -> None:
        name = f"n{len(lines)}"
        lines.append(Line(Var(name, kind), op, args, value))
        kinds[name] = kind

    add("const", (), "float", 1.0)
    add("const", (), "float", draw(st.sampled_from([0.0, 1.0, -2.0, INF])))
    add("lt", (pick("float"), pick("float")), "bool")
    for _ in range(draw(st.integers(3, 14))):
        op = draw(st.sampled_from(_OPS))
        if op == "again" and lines:
            old = draw(st.sampled_from(lines))
            args = old.args[::-1] if len(old.args) == 2 and draw(st.booleans()) else old.args
            add(old.op, args, old.var.kind, old.value)
        elif op == "one":
            add("mul", draw(st.permutations(["n0", pick("float")])), "float")
        elif op == "same":
            x = pick("float")
            add("where", (pick("bool"), x, x), "float")
        elif op in {"and", "or", "xor"}:
            add(op, (pick("bool"), pick("bool")), "bool")
        elif op in {"lt", "le", "gt", "ge", "eq", "ne"}:
            add(op, (pick("float"), pick("float")), "bool")
        elif op == "where":
            add(op, (pick("bool"), pick("float"), pick("float")), "float")
        elif op != "again":
            count = TABLE[op].text.count("{")
            add(op, tuple(pick("float") for _ in range(count)), "float")
    outputs = tuple((f"y{i}", draw(st.sampled_from(sorted(kinds)))) for i in range(draw(st.integers(1, 3))))
    return Program("random", (), inputs, tuple(lines), outputs)


_OPS = [
    "again", "again", "one", "same", "where", "lt", "gt", "ge", "eq", "and", "xor",
    "add", "sub", "mul", "div", "neg", "abs", "minimum", "maximum", "exp", "tanh", "sign",
]  # fmt: skip
# maximum and minimum of zeros of both signs depend on the order of their operands in torch itself
NUMBERS = [1.0, -1.0, 0.5, 0.0, -0.0, 3.25, -7.0, 1e300, INF, -INF, math.nan, 2.0]


def run_torch(program: Program, columns) -> list[torch.Tensor]:
    """The emitted function, on float64."""
    names: dict = {}
    exec("import torch\nfrom torch import inf, nan\n" + function(program, "f", ""), names)
    return [torch.broadcast_to(y, (len(NUMBERS),)) for y in names["f"](*columns)]


class TestTidy:
    @quick
    @given(programs(), st.integers(0, 11), st.integers(0, 11))
    def test_no_value_changes(self, program, first, second):
        """Bit for bit, on infinities and NaN too."""
        check_program(program)
        columns = [torch.tensor(NUMBERS, dtype=torch.float64).roll(k) for k in (0, first, second)]
        before = run_torch(program, columns)
        for step in (share, drop_dead, tidy):
            after = run_torch(check_program(step(program)), columns)
            for x, y in zip(before, after, strict=True):
                known, found = x.nan_to_num(nan=12345.0), y.nan_to_num(nan=12345.0)
                assert torch.equal(known, found)
                assert torch.equal(known.signbit(), found.signbit())

    @quick
    @given(programs())
    def test_it_is_done_after_one_pass(self, program):
        once = tidy(program)
        assert tidy(once) == once
        assert len(once.lines) <= len(program.lines)
        assert [n for n, _ in once.outputs] == [n for n, _ in program.outputs]

    def test_what_it_finds(self):
        builder = Builder("demo", where="")
        x, y = builder.input("x", "float"), builder.input("y", "float")
        values = {"a": (x + y) * (y + x), "b": 1.0 * x, "c": (x > y).call("where", y, y), "d": y < x}
        dead = x.call("exp")
        program = tidy(builder.finish(values))
        assert dead.var.name not in {line.var.name for line in program.lines if line.op == "exp"}
        assert [line.op for line in program.lines] == ["add", "mul", "gt"]
        assert dict(program.outputs)["b"] == "x"
        assert dict(program.outputs)["c"] == "y"

    def test_the_order_of_minimum_and_maximum_stays(self):
        """Of 0 and -0 torch returns the one that its order of operands says."""
        builder = Builder("demo", where="")
        x, y = builder.input("x", "float"), builder.input("y", "float")
        values = {"a": x.call("maximum", y), "b": y.call("maximum", x), "c": x.call("maximum", y)}
        program = tidy(builder.finish(values))
        assert [line.args for line in program.lines] == [("x", "y"), ("y", "x")]

    def test_a_choice_that_broadcasts_stays(self):
        """where(m > 0, x, x) is x spread over the axes of m."""
        builder = Builder("demo", ("t", "d"), where="")
        x, m = builder.input("x", "float", ("d",)), builder.input("m", "float", ("t",))
        program = tidy(builder.finish({"z": (m > 0.0).call("where", x, x)}))
        assert program.output("z").axes == ("t", "d")
