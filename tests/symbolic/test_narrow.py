"""Products in another order: the same value, and less work in the widest lines."""

from __future__ import annotations

import math
from collections import Counter
from functools import reduce
from operator import mul

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scanforge.adjoint import full_adjoint
from scanforge.ir.builder import Builder
from scanforge.ir.program import Program
from scanforge.narrow import narrowed
from scanforge.schedule import step_program
from tests.recurrences import BY_NAME, ENTRIES
from tests.symbolic.programs import draw, run, scan_of

AXES = ("t", "b", "d", "n")


def assert_same_values(program: Program, other: Program, seed: int = 0) -> None:
    given = draw(program, seed)
    before, after = run(program, given), run(other, given)
    assert list(before) == list(after)
    for name, x in before.items():
        torch.testing.assert_close(after[name], x, rtol=1e-10, atol=1e-10, equal_nan=True)


def build(outputs) -> Program:
    """A program over inputs u [t b d], B [t b n], A [d n], w [d], z [t b d]."""
    builder = Builder("demo", AXES, where="")
    u, z = (builder.input(n, "float", ("t", "b", "d")) for n in "uz")
    given = {"u": u, "z": z, "B": builder.input("B", "float", ("t", "b", "n"))}
    given |= {"A": builder.input("A", "float", ("d", "n")), "w": builder.input("w", "float", ("d",))}
    return builder.finish(outputs(builder, **given))


def widths(program: Program, op: str) -> list[int]:
    """How many axes the lines of an operation have."""
    return sorted(len(line.var.axes) for line in program.lines if line.op == op)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_no_value_changes(entry, way):
    scan = scan_of(entry)
    program = step_program(scan) if way == "forward" else full_adjoint(scan).step
    other = narrowed(program)
    assert_same_values(program, other)
    assert max([*widths(other, "mul"), 0]) <= max([*widths(program, "mul"), 0])
    full = len(program.axes)
    squares = widths(other, "expm1_of").count(full)  # of an exponential, in place of another one
    assert widths(other, "mul").count(full) <= widths(program, "mul").count(full) + squares


def test_narrow_axes_first():
    """(u B) z is (u z) B."""
    program = build(lambda builder, u, z, B, A, w: {"y": u * B * z})
    other = narrowed(program)
    assert widths(program, "mul") == [4, 4]
    assert widths(other, "mul") == [3, 4]
    assert_same_values(program, other)


def test_the_order_stays_where_all_factors_are_alike():
    program = build(lambda builder, u, z, B, A, w: {"y": u * z * u * z})
    assert [line.args for line in narrowed(program).lines] == [line.args for line in program.lines]


def test_a_factor_without_the_axis_leaves_the_sum():
    program = build(lambda builder, u, z, B, A, w: {"y": builder.sum(z * B * A * w, ("n",))})
    other = narrowed(program)

    assert widths(other, "mul").count(4) == 1
    assert_same_values(program, other)


def test_a_sum_of_a_product_that_has_the_axis_nowhere():
    """A sum over an axis that the operand lacks multiplies by its size."""
    program = build(
        lambda builder, u, z, B, A, w: {"y": builder.sum(u * z, ("n",)) + 0.0 * builder.sum(A, ("n",))}
    )
    assert_same_values(program, narrowed(program))


def test_an_exponential_of_a_steady_factor_has_base_2():
    """exp(u A) = 2^(u (A log2 e)): the product with log2 e is of A, before the loop."""
    program = build(lambda builder, u, z, B, A, w: {"y": (u * A).call("exp")})
    other = narrowed(program)
    assert [line.op for line in other.lines if line.op.startswith("exp")] == ["exp2"]
    assert math.log2(math.e) in other.constants().values()
    assert widths(other, "mul") == [2, 4]
    assert_same_values(program, other)


@pytest.mark.parametrize(
    "inside",
    [
        lambda u, z, A, w: u * z,
        lambda u, z, A, w: -0.5 * u,
        lambda u, z, A, w: u + A,
        lambda u, z, A, w: w * A,
        lambda u, z, A, w: u * u,
    ],
)
def test_other_exponentials_stay(inside):
    """Nothing steady but numbers, no product, or nothing of time."""
    program = build(lambda builder, u, z, B, A, w: {"y": inside(u, z, A, w).call("exp") * B})
    other = narrowed(program)
    assert [line.op for line in other.lines if line.op.startswith("exp")] == ["exp"]
    assert_same_values(program, other)


def test_mamba_has_one_wide_product_less():
    """dt u B: the product of the two channels' values comes first."""
    program = step_program(scan_of(BY_NAME["Mamba"]))
    full = len(program.axes)
    assert widths(narrowed(program), "mul").count(full) <= widths(program, "mul").count(full)


@st.composite
def products(draw) -> Program:
    """Products, sums and exponentials of products, some read twice."""
    builder = Builder("random", AXES, where="")
    values = [
        builder.input(f"x{i}", "float", tuple(a for a in AXES if a in axes))
        for i, axes in enumerate(draw(st.lists(st.sets(st.sampled_from(AXES)), min_size=3, max_size=5)))
    ]
    values.append(builder.input("whole", "float", AXES))
    for _ in range(draw(st.integers(2, 8))):
        x, y = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        op = draw(st.sampled_from(["mul", "mul", "mul", "add", "sum", "exp", "number"]))
        if op == "sum":
            values.append(builder.sum(x, (draw(st.sampled_from(("d", "n"))),)))
        elif op == "exp":
            values.append((x.call("tanh") * y.call("tanh")).call("exp"))
        elif op == "number":
            values.append(0.5 * x)
        else:
            values.append(x.call(op, y))
    return builder.finish({"y": values[-1], "z": values[-2]})


@settings(max_examples=100, deadline=None, derandomize=True)
@given(products(), st.integers(0, 99))
def test_random_products(program, seed):
    given = draw(program, seed)
    before, after = run(program, given), run(narrowed(program), given)
    for name, x in before.items():
        torch.testing.assert_close(*torch.broadcast_tensors(after[name], x), rtol=1e-8, atol=1e-8)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=2, max_size=6))
def test_products_of_the_same_factors_many_times(powers):
    """Squares and cubes among products that share pairs: no factor gets lost."""

    def outputs(builder, u, z, B, A, w):
        factors = (u, z, u.call("tanh"), z.call("tanh"))
        return {f"y{i}": reduce(mul, (factors[k] for k in ks)) for i, ks in enumerate(powers)}

    program = build(outputs)
    assert_same_values(program, narrowed(program))


def test_the_slope_of_a_cube_keeps_its_square():
    """Three terms g² z x, of a product with a pair that each of them has."""

    def outputs(builder, u, z, B, A, w):
        term = 0.1 * u * u * (z * w)
        return {"x": term + term + u * (z * w) * u, "y": z * w * u.call("tanh")}

    program = build(outputs)
    assert_same_values(program, narrowed(program))


def ops(program: Program) -> Counter[str]:
    return Counter(line.op for line in program.lines)


def test_expm1_takes_the_square_of_an_exponential_at_hand():
    """expm1(2 y) beside exp(y), y = -8 w u: one exponential, whichever stands first in the program."""
    for first in (0, 1):

        def outputs(builder, u, z, B, A, w, first=first):
            y = -8.0 * w * u
            made = [("a", lambda: y.call("exp")), ("b", lambda: (2.0 * y).call("expm1"))]
            return {name: make() for name, make in (made[first], made[1 - first])}

        program = build(outputs)
        other = narrowed(program)
        assert ops(other)["exp"] + ops(other)["exp2"] == ops(other)["expm1_of"] == 1
        assert ops(other)["expm1"] == 0
        assert_same_values(program, other)


def test_expm1_takes_an_exponential_of_its_own():
    program = build(lambda builder, u, z, B, A, w: {"a": u.call("exp"), "b": (3.0 * u).call("expm1")})
    other = narrowed(program)
    assert ops(other)["exp"] == 2
    assert_same_values(program, other)


def test_pairs_of_factors_are_taken_once():
    """The pair u z, which all three products have."""
    program = build(
        lambda builder, u, z, B, A, w: {
            "x": z * w * u,
            "y": u * u.call("tanh") * z,
            "v": z.call("tanh") * z * u,
        }
    )
    other = narrowed(program)
    assert ops(program)["mul"] == 6
    assert ops(other)["mul"] == 4
    assert_same_values(program, other)


def test_numbers_and_signs_of_a_product_are_one():
    program = build(lambda builder, u, z, B, A, w: {"y": -((2.0 * u) * (0.5 * z)), "x": -(-(u * w) * 3.0)})
    other = narrowed(program)
    assert ops(other)["mul"] == 3
    assert ops(other)["neg"] == 1
    assert_same_values(program, other)
