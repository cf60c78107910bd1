"""The intermediate representation: printing, typing, the checker, text and back, its meanings."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest

import scanforge as sf
from scanforge.errors import ScanforgeError
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program, check_scan
from scanforge.ir.interpret import Exact, Precise, interpret, is_rational
from scanforge.ir.primitives import TABLE, primitive
from scanforge.ir.program import Program, Var, fresh
from scanforge.ir.scan import dump, dump_operator, load, load_operator
from scanforge.ir.sympy_view import to_sympy
from scanforge.ir.typing import broadcast, common, signature
from scanforge.prune import drop_dead
from scanforge.trace import Signature, prefix_scan, trace

OPERATORS = [getattr(sf.operators, name) for name in sf.operators.__all__]
INF = math.inf


def traced(operator):
    """A bare operator on three axes."""
    count = len(operator.__scanforge__.leaves)
    return trace(operator, Signature(("t", "b", "d"), (("b", "t", "d"),) * count))


def written() -> Program:
    """y = (a + 2) * x, z = x < a, with axes."""
    builder = Builder("demo", ("t", "b", "d"), where="demo.py:7")
    a, x = builder.input("a", "float", ("d",)), builder.input("x", "float", ("t", "b", "d"))
    return builder.finish({"y": (a + 2) * x, "z": x < a, "s": builder.sum(x, ("d",))})


def with_line(program: Program, name: str, **changes) -> Program:
    """The program with one line changed."""
    lines = [replace(x, **changes) if x.var.name == name else x for x in program.lines]
    return replace(program, lines=tuple(lines))


def as_int(fields):
    """The leaves or states, the first one of kind int."""
    return (replace(fields[0], kind="int"), *fields[1:])


class TestPrinting:
    def test_one_line_per_assignment(self):
        assert str(written()) == (
            "demo(a: float[d], x: float[t b d])\n"
            "    v1: float[d] = a + 2.0  # demo.py:7\n"
            "    v2: float[t b d] = v1 * x  # demo.py:7\n"
            "    v3: bool[t b d] = x < a  # demo.py:7\n"
            "    v4: float[t b] = sum(x, 'd')  # demo.py:7\n"
            "    return y=v2, z=v3, s=v4"
        )

    def test_without_places(self):
        assert "#" not in written().text(where=False)

    def test_a_constant_output_is_written_in_place(self):
        builder = Builder("demo", where="")
        assert str(builder.finish({"y": builder.const(-INF, "float")})).endswith("return y=-inf")

    def test_order_and_parentheses_are_the_users(self):
        """Nothing is reordered or folded: x/x, x-x and 0*x stay."""
        builder = Builder("demo", where="")
        x, b = builder.input("x", "float"), builder.input("b", "float")
        text = builder.finish({"y": b + x / x, "z": x - x, "w": 0.0 * x}).text()
        for piece in ("x / x", "b + v0", "x - x", "0.0 * x"):
            assert piece in text

    def test_scan_names_all_its_parts(self):
        text = str(traced(sf.operators.MinMax).scan)
        for piece in (
            "scan MinMax over (t b d)",
            "input  r: float[b t d]  given",
            "state  x: float[b d] = 0.0",
            "output x: float[b t d]  inputs",
            "MinMax.combine(",
            "MinMax.readout(",
        ):
            assert piece in text

    def test_lines_carry_the_users_place(self):
        lines = traced(sf.operators.Affine).scan.operator.apply.lines
        assert {line.where.split(":")[0] for line in lines} == {"operators.py"}

    def test_fresh_names_are_free(self):
        assert fresh("x", {"x", "x_"}) == "x__"
        assert fresh("y", {"x"}) == "y"

    def test_an_unknown_primitive_lists_the_known_ones(self):
        with pytest.raises(ScanforgeError, match=r"nosuch.*maximum"):
            primitive("nosuch")


class TestChecker:
    def test_a_right_program_passes(self):
        assert check_program(written()) == written()

    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            (lambda p: replace(p, inputs=(*p.inputs, p.inputs[0])), "two inputs share a name"),
            (lambda p: replace(p, lines=(*p.lines, p.lines[1])), "assigned twice"),
            (lambda p: with_line(p, "v1", var=Var("a", "float", ("d",))), "assigned twice"),
            (lambda p: with_line(p, "v1", args=("a", "nobody")), "not assigned yet"),
            (lambda p: replace(p, lines=p.lines[::-1]), "not assigned yet"),
            (lambda p: with_line(p, "v2", var=Var("v2", "float", ("t", "b", "q"))), "unknown axis"),
            (lambda p: with_line(p, "v2", var=Var("v2", "float", ("d",))), "wrong type"),
            (lambda p: with_line(p, "v2", var=Var("v2", "float", ("b", "t", "d"))), "wrong type"),
            (lambda p: with_line(p, "v2", var=Var("v2", "int", ("t", "b", "d"))), "wrong type"),
            (lambda p: with_line(p, "v3", var=Var("v3", "float", ("t", "b", "d"))), "wrong type"),
            (lambda p: with_line(p, "v0", value=None), "no number"),
            (lambda p: with_line(p, "v4", over=()), "sums to the wrong axes"),
            (lambda p: with_line(p, "v4", over=("b",)), "sums to the wrong axes"),
            (lambda p: replace(p, outputs=(("y", "nobody"),)), "an output names nothing"),
            (
                lambda p: replace(p, inputs=(Var("a", "int", ("d",)), p.inputs[1])),
                "argument of the wrong kind",
            ),
        ],
    )
    def test_a_broken_program_is_caught(self, broken, message):
        with pytest.raises(AssertionError, match=message):
            check_program(broken(written()))

    @pytest.mark.parametrize("operator", OPERATORS, ids=lambda x: x.__name__)
    def test_shipped_scans_pass(self, operator):
        check_scan(traced(operator).scan)
        check_scan(prefix_scan(traced(operator)).scan)

    @pytest.mark.parametrize(
        ("broken", "message"),
        [
            (lambda s: replace(s, element=replace(s.element, outputs=s.element.outputs[:1])), "element map"),
            (lambda s: replace(s, states=(replace(s.states[0], name="other"),)), "the states have other"),
            (lambda s: replace(s, outputs=()), "other outputs"),
            (lambda s: replace(s, operator=replace(s.operator, combine=s.operator.apply)), "other leaves"),
            (lambda s: replace(s, operator=replace(s.operator, apply=s.operator.combine)), "other states"),
            (lambda s: replace(s, operator=replace(s.operator, leaves=as_int(s.operator.leaves))), "kind"),
            (lambda s: replace(s, operator=replace(s.operator, states=as_int(s.operator.states))), "kind"),
        ],
    )  # fmt: skip
    def test_a_broken_scan_is_caught(self, broken, message):
        with pytest.raises(AssertionError, match=message):
            check_scan(broken(traced(sf.operators.Affine).scan))


class TestTyping:
    def test_axes_are_united_in_the_programs_order(self):
        assert broadcast(("t", "b", "d"), [("d",), ("t",), ()]) == ("t", "d")

    def test_the_widest_kind(self):
        assert [common(x) for x in (["bool", "int"], ["int", "float"], ["bool"])] == ["int", "float", "bool"]

    @pytest.mark.parametrize(
        ("op", "kinds", "wanted", "result"),
        [
            ("add", ("int", "int"), ("int", "int"), "int"),
            ("add", ("int", "float"), ("float", "float"), "float"),
            ("div", ("int", "int"), ("float", "float"), "float"),
            ("pow", ("int", "int"), ("float", "float"), "float"),
            ("exp", ("int",), ("float",), "float"),
            ("abs", ("int",), ("int",), "int"),
            ("lt", ("int", "float"), ("float", "float"), "bool"),
            ("eq", ("bool", "bool"), ("bool", "bool"), "bool"),
            ("and", ("bool", "bool"), ("bool", "bool"), "bool"),
            ("where", ("bool", "int", "float"), ("bool", "float", "float"), "float"),
            ("where", ("bool", "bool", "bool"), ("bool", "bool", "bool"), "bool"),
            ("to_float", ("int",), ("int",), "float"),
        ],
    )
    def test_kinds(self, op, kinds, wanted, result):
        assert signature(TABLE[op], kinds) == (wanted, result)

    @pytest.mark.parametrize(
        ("op", "kinds", "message"),
        [
            ("add", ("bool", "float"), r"sf\.where"),
            ("exp", ("bool",), r"sf\.where"),
            ("lt", ("bool", "bool"), "compares numbers"),
            ("eq", ("bool", "int"), "mixes a bool"),
            ("and", ("bool", "float"), "compare first"),
            ("not", ("int",), "compare first"),
            ("where", ("float", "float", "float"), "condition"),
            ("where", ("bool", "bool", "float"), "mixes a bool"),
        ],
    )
    def test_kinds_that_do_not_fit(self, op, kinds, message):
        with pytest.raises(sf.TraceError, match=message):
            signature(TABLE[op], kinds)

    def test_an_int_meets_a_float(self):
        builder = Builder("demo", where="")
        n, x = builder.input("n", "int"), builder.input("x", "float")
        assert [(v.var.kind) for v in (n + 1, n + 1.5, n * x, n < 2, n / 2)] == [
            "int", "float", "float", "bool", "float",
        ]  # fmt: skip
        assert check_program(builder.finish({"y": n * x + n}))

    def test_one_line_for_equal_numbers(self):
        builder = Builder("demo", where="")
        x = builder.input("x", "float")
        y = (x + 2) * 2 + 2.0
        assert [line.op for line in builder.finish({"y": y}).lines].count("const") == 1
        assert builder.const(0.0, "float").var != builder.const(-0.0, "float").var


class TestText:
    @pytest.mark.parametrize("operator", OPERATORS, ids=lambda x: x.__name__)
    def test_round_trip(self, operator):
        made = traced(operator)
        for scan in (made.scan, prefix_scan(made).scan):
            assert load(dump(scan)) == scan
            assert dump(load(dump(scan))) == dump(scan)
        back = load_operator(made.operators[0])
        assert dump_operator(back) == made.operators[0]
        assert back.combine == made.scan.operator.combine

    def test_numbers_survive_to_the_last_bit(self):
        builder = Builder("demo", where="")
        values = [0.1, 1 / 3, -0.0, 5e-324, INF, -INF, 3, True]
        kinds = ["float"] * 6 + ["int", "bool"]
        program = builder.finish(
            {f"y{i}": builder.const(v, k) for i, (v, k) in enumerate(zip(values, kinds, strict=True))}
        )
        scan = replace(traced(sf.operators.Affine).scan, readout=program)
        found = [line.value for line in load(dump(scan)).readout.lines]
        assert [repr(x) for x in found] == [repr(x) for x in values]

    def test_no_file_names_in_the_text(self):
        """The text is a key: the same operator in another file or line is the same operator."""
        made = traced(sf.operators.Kalman)
        assert "operators.py" not in made.text + made.operators[0]
        assert "where" not in {
            key for line in json.loads(made.operators[0])["apply"]["lines"] for key in line
        }


class TestMeaning:
    """The interpreter over rationals, 40 digits and SymPy."""

    @pytest.fixture
    def kalman(self) -> Program:
        return traced(sf.operators.Kalman).scan.operator.apply

    def test_exact(self, kalman):
        values = {"gain": 2, "offset": 1, "noise": 3, "eta": 5, "info": 7, "mean": 11, "var": 13}
        out = interpret(kalman, {n: Fraction(v) for n, v in values.items()}, Exact())
        share = Fraction(2, 1 + 13 * 7)
        assert out == {"mean": share * (11 + 13 * 5) + 1, "var": 2 * share * 13 + 3}

    def test_precise(self):
        builder = Builder("demo", where="")
        x = builder.input("x", "float")
        program = builder.finish({"y": (x + 1.0).call("log"), "z": x.call("log1p"), "w": 0.1 * x})
        domain = Precise(40)
        x40 = domain.mpmath.mpf(10) ** -30
        out = interpret(program, {"x": x40}, domain)
        assert abs(out["z"] - (x40 - x40**2 / 2)) < domain.mpmath.mpf(10) ** -68
        assert abs(out["y"] - out["z"]) < domain.mpmath.mpf(10) ** -39
        assert out["w"] == x40 * domain.mpmath.mpf(0.1) != x40 / 10  # the double 0.1, not a tenth

    def test_which_programs_are_rational(self):
        builder = Builder("demo", where="")
        x = builder.input("x", "float")
        rational = [x * x / (x + 1), x**2, x.call("maximum", 0.5), (x > 1).call("where", x, -x)]
        other = [x.call("exp"), x**0.5, 2**x, x.call("minimum", INF)]
        assert [is_rational(drop_dead(builder.finish({"y": y}))) for y in rational] == [True] * 4
        assert [is_rational(drop_dead(builder.finish({"y": y}))) for y in other] == [False] * 4

    def test_sympy_is_a_view_that_folds_what_the_program_keeps(self):
        builder = Builder("demo", where="")
        x = builder.input("x", "float")
        program = builder.finish({"y": x / x, "z": x - x + 2.0})
        view = to_sympy(program)
        assert (view["y"], view["z"]) == (1, 2)
        assert "x / x" in str(program)
        assert "x - x" in str(program)

    def test_sympy_symbols_and_kinds(self):
        builder = Builder("demo", where="")
        x, n, flag = builder.input("x", "float"), builder.input("n", "int"), builder.input("f", "bool")
        view = to_sympy(builder.finish({"y": flag.call("where", x, 0.5), "z": n * 2, "w": ~flag}))
        assert view["y"].free_symbols == {s for s in view["y"].free_symbols if str(s) in {"x", "f"}}
        assert view["z"].is_integer
        assert str(view["w"]) == "~f"

    @pytest.mark.parametrize("name", sorted(TABLE))
    def test_every_primitive_has_a_sympy_view_of_the_same_value(self, name):
        """At a generic point, against the row's rule in 40 digits."""
        row, domain = TABLE[name], Precise(40)
        kinds = ["bool" if k == "logic" or (k == "select" and i == 0) else "float"
                 for k in [row.kinds] for i in range(row.text.count("{"))]  # fmt: skip
        builder = Builder("demo", where="")
        args = [builder.input(f"x{i}", k) for i, k in enumerate(kinds)]
        program = builder.finish({"y": builder.call(name, *args)})
        points = {f"x{i}": True if k == "bool" else Fraction(3 + 4 * i, 7) for i, k in enumerate(kinds)}
        numbers = {
            n: x if x is True else domain.mpmath.mpf(x.numerator) / x.denominator for n, x in points.items()
        }
        view = to_sympy(program)["y"]
        found = view.subs({s: points[str(s)] for s in view.free_symbols})
        truth = interpret(program, numbers, domain)["y"]
        if isinstance(truth, bool):
            assert bool(found) is truth
        else:
            assert abs(domain.mpmath.mpf(str(found.evalf(40))) - truth) < 1e-35
