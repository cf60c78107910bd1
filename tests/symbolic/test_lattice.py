"""The canonical form of minima and maxima of polynomials: what it calls equal is equal."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from functools import partial, reduce
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scanforge as sf
from scanforge.ir.interpret import Exact, interpret
from scanforge.ir.lattice import Lattices, Undecidable
from scanforge.trace import trace_operator

INF = math.inf
quick = settings(max_examples=150, deadline=None, derandomize=True)

SYMBOLS = ("x", "y", "z")
POINTS = list(product(map(Fraction, range(-2, 3)), repeat=3))


def expressions():
    """Random programs of minimum, maximum, plus, minus and small factors, as nested tuples."""
    leaf = st.sampled_from([*SYMBOLS, 0.0, 1.0, -1.5])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["minimum", "maximum", "add", "sub"]), inner, inner),
            st.tuples(st.just("mul"), st.sampled_from([2.0, -1.0, 0.5, -2.0]), inner),
            st.tuples(st.just("neg"), inner),
        ),
        max_leaves=6,
    )


def evaluated(tree, call, const, symbols):
    if isinstance(tree, str):
        return symbols[tree]
    if isinstance(tree, float):
        return const(tree, "float")
    return call(tree[0], *(evaluated(x, call, const, symbols) for x in tree[1:]))


def canonical(tree):
    domain = Lattices(SYMBOLS)
    return evaluated(tree, domain.call, domain.const, domain.symbols)


def values(tree) -> list[Fraction]:
    exact = Exact()
    return [evaluated(tree, exact.call, exact.const, dict(zip(SYMBOLS, p, strict=True))) for p in POINTS]


def rewritten(tree, choose):
    """An equal expression: operands exchanged, sums distributed, minus and min spelt as plus and max."""
    if not isinstance(tree, tuple):
        return tree
    op, *args = tree
    args = [rewritten(x, choose) for x in args]
    if op == "mul":
        return ("mul", args[1], args[0]) if choose() else ("mul", *args)
    if op == "neg":
        return ("mul", -1.0, *args) if choose() else ("neg", *args)
    a, b = args
    if op == "sub":
        return ("add", a, ("neg", b)) if choose() else ("sub", a, b)
    if choose():
        a, b = b, a
    if op in {"minimum", "maximum"} and choose():
        other = {"minimum": "maximum", "maximum": "minimum"}[op]
        return ("neg", (other, ("neg", a), ("neg", b)))
    if op == "add" and isinstance(b, tuple) and b[0] in {"minimum", "maximum"} and choose():
        return (b[0], ("add", a, b[1]), ("add", a, b[2]))
    return (op, a, b)


def spoiled(tree, choose):
    """A near miss: one minimum becomes a maximum, or one sum a difference."""
    if not isinstance(tree, tuple):
        return tree
    op, *args = tree
    if op in {"minimum", "maximum", "add"} and choose():
        return ({"minimum": "maximum", "maximum": "minimum", "add": "sub"}[op], *args)
    return (op, *(spoiled(x, choose) for x in args))


def assert_sound(tree, other) -> None:
    """Equal in form only if equal in value."""
    with contextlib.suppress(Undecidable):
        assert canonical(tree) != canonical(other) or values(tree) == values(other)


class TestCanonicalForm:
    @quick
    @given(expressions(), st.data())
    def test_a_near_miss_is_not_called_equal(self, tree, data):
        assert_sound(tree, spoiled(tree, lambda: data.draw(st.booleans())))

    @quick
    @given(expressions(), expressions())
    def test_nor_is_an_unrelated_expression(self, tree, other):
        assert_sound(tree, other)

    @quick
    @given(expressions(), st.data())
    def test_an_equal_expression_is_recognised(self, tree, data):
        other = rewritten(tree, lambda: data.draw(st.booleans()))
        assert values(tree) == values(other)
        with contextlib.suppress(Undecidable):
            assert canonical(tree) == canonical(other)

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            (("minimum", "x", ("maximum", "x", "y")), "x"),
            (
                ("maximum", ("minimum", "x", "y"), ("minimum", "x", "z")),
                ("minimum", "x", ("maximum", "y", "z")),
            ),
            (("minimum", "x", INF), "x"),
            (("maximum", "x", -INF), "x"),
            (("minimum", "x", -INF), -INF),
            (("add", "x", -INF), -INF),
            (("mul", "x", ("add", "y", "z")), ("add", ("mul", "x", "y"), ("mul", "z", "x"))),
            (("pow", ("add", "x", 1.0), 2.0), ("add", ("add", ("pow", "x", 2.0), ("mul", 2.0, "x")), 1.0)),
            (("div", "x", 4.0), ("mul", 0.25, "x")),
        ],
    )  # fmt: skip
    def test_laws_it_knows(self, left, right):
        assert canonical(left) == canonical(right)

    @pytest.mark.parametrize(
        "tree",
        [
            ("exp", "x"),
            ("div", "x", "y"),
            ("pow", "x", 0.5),
            ("pow", "x", -1.0),
            ("mul", ("minimum", "x", "y"), "z"),
            ("add", INF, -INF),
            ("mul", 0.0, ("maximum", "x", INF)),
            ("abs", "x"),
        ],
    )
    def test_what_it_does_not_decide(self, tree):
        with pytest.raises(Undecidable):
            canonical(tree)

    def test_it_gives_up_before_it_explodes(self):
        domain = Lattices([f"x{i}" for i in range(20)])
        pairs = [
            domain.call("maximum", domain.symbols[f"x{i}"], domain.symbols[f"x{i + 1}"])
            for i in range(0, 20, 2)
        ]
        with pytest.raises(Undecidable):
            reduce(partial(domain.call, "minimum"), pairs)

    def test_min_max_and_max_plus_are_associative(self):
        """The elements themselves, leaf by leaf: more than the laws ask for."""
        for operator in (sf.operators.MinMax, sf.operators.MaxPlus, sf.operators.Affine):
            ir = trace_operator(operator)
            names = [leaf.name for leaf in ir.leaves]
            domain = Lattices([f"{e}_{n}" for e in "abc" for n in names])
            a, b, c = ({n: domain.symbols[f"{e}_{n}"] for n in names} for e in "abc")

            def combine(first, later, ir=ir, domain=domain):
                given = {f"earlier_{n}": v for n, v in first.items()} | {
                    f"later_{n}": v for n, v in later.items()
                }
                return interpret(ir.combine, given, domain)

            assert combine(combine(a, b), c) == combine(a, combine(b, c))
            assert combine(a, b) != combine(b, a)
