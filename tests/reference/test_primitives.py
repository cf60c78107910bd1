"""Every row of the primitive table against torch: value, first and second derivative, at edges too.

torch's rules are the truth: ties split in half, where selects, the slope of abs at 0 is 0, NaN propagates.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import scanforge as sf
from scanforge.emit.torch_text import function
from scanforge.ir.builder import Builder
from scanforge.ir.primitives import TABLE
from scanforge.ir.program import Program
from scanforge.prune import tidy
from scanforge.vjp import pull_back

INF, NAN, F64 = math.inf, math.nan, torch.float64


class CappedSqrt(torch.autograd.Function):
    """The root, whose slope below `floor` is that at `floor`."""

    @staticmethod
    def forward(ctx, x, floor):
        ctx.save_for_backward(x, floor)
        return torch.sqrt(x)

    @staticmethod
    def backward(ctx, g):
        x, floor = ctx.saved_tensors
        return g * (0.5 * torch.rsqrt(torch.maximum(x, floor))), None


class Guard(torch.autograd.Function):
    """x; nothing flows back to it where the condition is false."""

    @staticmethod
    def forward(ctx, condition, x):
        ctx.save_for_backward(condition)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None, torch.where(ctx.saved_tensors[0], g, 0.0)


class Gated(torch.autograd.Function):
    """a x, and 0 where a is 0, whatever x is; so is the cotangent of x."""

    @staticmethod
    def forward(ctx, a, x):
        ctx.save_for_backward(a, x)
        return torch.where(a == 0, 0.0, a * x)

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        return g * x, Gated.apply(a, g)


COUNTERPARTS = {
    **{n: getattr(torch, n) for n in TABLE if hasattr(torch, n)},
    **{n: getattr(functional, n) for n in ("gelu", "silu", "softplus")},
    **{n: getattr(torch, f"logical_{n}") for n in ("and", "not", "or", "xor")},
    "to_float": lambda x: x.to(F64),
    "stop_gradient": torch.detach,
    "capped_sqrt": CappedSqrt.apply,
    "expm1_of": lambda x, u: torch.expm1(x),
    "guard": Guard.apply,
    "gated": Gated.apply,
}

# Zeros of both signs, ties, the threshold of softplus, overflow, infinities, NaN.
ONE = [-INF, -1e300, -750.0, -25.0, -2.5, -1.0, -0.5, -1e-3, -0.0, 0.0, 1e-8, 0.5, 1.0, 2.5]
ONE += [19.5, 20.5, 25.0, 750.0, 1e300, INF, NAN]
TWO = [-INF, -1e300, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 1e300, INF, NAN]
POWERS = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, -0.5, -1.0, -2.0]
WHOLE = [-3, -1, 0, 1, 2, 5]

# Where torch's own second derivative is no truth, and ours is the limit of its neighbours.
APART = {
    "gelu": "at 1e300 torch multiplies an overflowing square by 0",
    "pow": "at base 0, where the exponent's slope is cut off: see the test below",
}

every_row = pytest.mark.parametrize("name", sorted(TABLE))


def kinds_of(name: str) -> list[str]:
    """The kinds of a row's arguments, floats where it takes numbers."""
    count = TABLE[name].text.count("{")
    kind = {"logic": "bool", "cast": "int"}.get(TABLE[name].kinds, "float")
    choosing = TABLE[name].kinds in {"select", "guard"}
    return ["bool", *[kind] * (count - 1)] if choosing else [kind] * count


def columns(kinds: list[str], whole: bool = False) -> list[Tensor]:
    """All combinations of the edge values."""
    floats = ONE if kinds == ["float"] else TWO
    values = {"bool": [True, False], "int": WHOLE, "float": WHOLE if whole else floats}
    dtypes = {"bool": torch.bool, "int": torch.int64, "float": torch.int64 if whole else F64}
    rows = itertools.product(*(values[k] for k in kinds))
    return [torch.tensor(c, dtype=dtypes[k]) for c, k in zip(zip(*rows, strict=True), kinds, strict=True)]


@dataclass(frozen=True)
class Derivatives:
    """A row as programs: y from x0, x1, ...; its gradients, from g too; theirs, from hx0, hx1, ... too."""

    value: Program
    first: Program
    second: Program
    floats: tuple[str, ...]


def derivatives(name: str, kinds: list[str], constants: dict[int, float] | None = None) -> Derivatives:
    """The programs of a row; `constants` stand for the arguments of these numbers."""
    given = {f"x{i}": k for i, k in enumerate(kinds) if i not in (constants or {})}
    floats = tuple(n for n, k in given.items() if k == "float")

    builder = Builder("value", where="")
    made = {n: builder.input(n, k) for n, k in given.items()}
    args = [made.get(f"x{i}", (constants or {}).get(i)) for i in range(len(kinds))]
    value = builder.finish({"y": builder.call(name, *args)})

    builder = Builder("first", where="")
    made = {n: builder.input(n, k) for n, k in given.items()}
    seed = {"y": builder.input("g", "float")} if value.output("y").kind == "float" else {}
    found = pull_back(builder, value, builder.replay(value, made), seed, floats)
    first = tidy(builder.finish({f"d{n}": found.get(n, builder.const(0.0, "float")) for n in floats}))

    builder = Builder("second", where="")
    made = {n: builder.input(n, k) for n, k in (*given.items(), ("g", "float"))}
    seeds = {f"d{n}": builder.input(f"h{n}", "float") for n in floats}
    values = builder.replay(first, {v.name: made[v.name] for v in first.inputs})
    found = pull_back(builder, first, values, seeds, (*floats, "g"))
    zero = builder.const(0.0, "float")
    second = tidy(builder.finish({f"d{n}": found.get(n, zero) for n in (*floats, "g")}))
    return Derivatives(value, first, second, floats)


def run(program: Program, tensors: dict[str, Tensor]) -> list[Tensor]:
    """The emitted function of a program."""
    names: dict = {}
    exec("import torch\nfrom torch import inf, nan\n" + function(program, "f", ""), names)
    shape = next(iter(tensors.values())).shape
    return [y.expand(shape) for y in names["f"](*(tensors[v.name] for v in program.inputs))]


def torch_gradients(outputs, inputs, cotangents) -> list[Tensor]:
    """torch's, zeros where it has none."""
    pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if not pairs or not inputs:
        return [torch.zeros_like(x) for x in inputs]
    ys, cs = zip(*pairs, strict=True)
    found = torch.autograd.grad(ys, inputs, cs, create_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def assert_same(
    mine: list[Tensor], truth: list[Tensor], given: dict[str, Tensor], what: str, slack=0.0
) -> None:
    """Equal, NaN for NaN, to 1e-12 of the value; `slack` is for second derivatives whose terms cancel."""
    for i, (x, y) in enumerate(zip(mine, truth, strict=True)):
        assert x.dtype == y.dtype, what
        if not y.is_floating_point():
            assert torch.equal(x, y), what
            continue
        near = (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= 1e-12 * y.abs() + slack)
        wrong = [{n: c[k].item() for n, c in given.items()} | {"got": x[k].item(), "torch": y[k].item()}
                 for k in (~near).nonzero().flatten()]  # fmt: skip
        assert not wrong, f"{what}[{i}]: {wrong[:4]}"


def compare(
    name: str, kinds: list[str], tensors: list[Tensor], constants: dict[int, float] | None = None
) -> None:
    """Value, first and second derivative of a row on these tensors."""
    made, reference = derivatives(name, kinds, constants), COUNTERPARTS[name]
    given = {f"x{i}": x for i, x in enumerate(tensors) if i not in (constants or {})}
    leaves = {n: x.clone().requires_grad_() if n in made.floats else x for n, x in given.items()}
    like = next(iter(given.values()))
    numbers = {
        f"x{i}": v if name == "pow" else torch.full_like(like, v, dtype=F64)
        for i, v in (constants or {}).items()
    }
    args = [(leaves | numbers)[f"x{i}"] for i in range(len(kinds))]
    random = torch.Generator().manual_seed(5)
    g, *h = torch.randn((1 + len(made.floats), *like.shape), generator=random, dtype=F64)
    g.requires_grad_()
    wanted = [leaves[n] for n in made.floats]

    y = reference(*args)
    first = torch_gradients([y], wanted, [g if y.is_floating_point() else None])
    second = torch_gradients(first, [*wanted, g], h)
    given |= {"g": g.detach()} | {f"h{n}": x for n, x in zip(made.floats, h, strict=True)}
    assert_same(run(made.value, given), [y.detach()], given, f"{name}: value")
    assert_same(run(made.first, given), [x.detach() for x in first], given, f"{name}: first derivative")
    assert_same(run(made.second, given), [x.detach() for x in second], given, f"{name}: second", slack=1e-16)


class TestAgainstTorch:
    @every_row
    def test_every_row_has_a_counterpart(self, name):
        """torch's function of that name, or a line in COUNTERPARTS."""
        assert name in COUNTERPARTS
        assert set(COUNTERPARTS) <= set(TABLE)

    @every_row
    def test_value_and_derivatives(self, name):
        kinds = kinds_of(name)
        tensors = columns(kinds)
        if name in APART:
            keep = {"gelu": tensors[0].abs() != 1e300, "pow": tensors[0] != 0}[name]
            tensors = [x[keep] for x in tensors]
        compare(name, kinds, tensors)

    @pytest.mark.parametrize("power", POWERS)
    def test_constant_powers(self, power):
        """The exponent is a number: no slope of its own, and 0 ** 0 has slope 0."""
        compare("pow", ["float", "float"], [torch.tensor(ONE, dtype=F64)] * 2, {1: power})

    @pytest.mark.parametrize("base", [0.5, 1.0, 2.0])
    def test_constant_bases(self, base):
        compare("pow", ["float", "float"], [torch.tensor(ONE, dtype=F64)] * 2, {0: base})

    @pytest.mark.parametrize(
        "name", sorted(n for n in TABLE if kinds_of(n) == ["float", "float"] and n != "pow")
    )
    @pytest.mark.parametrize("position", [0, 1])
    @pytest.mark.parametrize("number", [-INF, -1.0, 0.0, 2.0])
    def test_a_number_beside_a_tensor(self, name, position, number):
        compare(name, ["float", "float"], [torch.tensor(TWO, dtype=F64)] * 2, {position: number})

    @pytest.mark.parametrize("condition", [True, False])
    def test_a_choice_that_is_made_already(self, condition):
        """A flag of the configuration, say."""
        builder = Builder("value", where="")
        a, b = builder.input("a", "float"), builder.input("b", "float")
        program = builder.finish({"y": builder.call("where", condition, a, b)})
        given = {"a": torch.ones(2), "b": torch.zeros(2)}
        assert torch.equal(run(program, given)[0], given["a" if condition else "b"])

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("lowering", ["loop", "parallel"])
    def test_a_flag_of_the_configuration(self, bias, lowering):
        """In methods, of values, numbers and complex values: the branch is chosen while tracing."""

        class Configured(sf.Operator):
            a = sf.Element(identity=1.0)
            b = sf.Element(identity=0.0)
            h = sf.State()

            def combine(self, later):
                return Configured(a=later.a * self.a, b=later.a * self.b + sf.where(bias, later.b, 0.0))

            def apply(self, h):
                return self.a * h * sf.where(True, 1.0, 2.0) + sf.where(bias, self.b, 0.0)

        for a in (torch.randn(2, 5, 3, dtype=F64), torch.randn(2, 5, 3, dtype=torch.complex128)):
            b = torch.randn_like(a).requires_grad_()
            states = sf.scan(Configured, a=a, b=b, lowering=lowering)
            truth = sf.scan(sf.operators.Affine, a=a, b=b if bias else 0 * b, lowering=lowering)
            torch.testing.assert_close(states, truth)
            found, known = (torch.autograd.grad(x.abs().sum(), b)[0] for x in (states, truth))
            torch.testing.assert_close(found, known)

    @pytest.mark.parametrize("position", [1, 2])
    def test_a_number_in_a_choice(self, position):
        compare("where", ["bool", "float", "float"], columns(["bool", "float", "float"]), {position: -INF})

    @pytest.mark.parametrize(
        "name", sorted(n for n in TABLE if TABLE[n].kinds in {"number", "compare", "select", "guard"})
    )
    def test_whole_numbers(self, name):
        kinds = kinds_of(name)
        tensors = columns(kinds, whole=True)
        kinds = [k if k == "bool" else "int" for k in kinds]
        builder = Builder("value", where="")
        args = [builder.input(f"x{i}", k) for i, k in enumerate(kinds)]
        program = builder.finish({"y": builder.call(name, *args)})
        given = {f"x{i}": x for i, x in enumerate(tensors)}
        assert program.output("y").kind == ("bool" if TABLE[name].kinds == "compare" else "int")
        assert_same(run(program, given), [COUNTERPARTS[name](*tensors)], given, name)

    def test_an_expression_of_ints_becomes_a_float(self):
        """All of the sum is converted, though it is written in place and a method binds tighter."""
        builder = Builder("value", where="")
        i, j, x = (builder.input(n, k) for n, k in (("i", "int"), ("j", "int"), ("x", "float")))
        program = builder.finish({"y": (i + j) * x + (i < j).call("to_float") * x})
        given = {"i": torch.tensor([1, 4]), "j": torch.tensor([2, 3]), "x": torch.tensor([10.0, 10.0])}
        assert run(program, given)[0].tolist() == [40.0, 70.0]

    def test_comparisons_of_bools(self):
        for name in ("eq", "ne"):
            builder = Builder("value", where="")
            program = builder.finish(
                {"y": builder.call(name, builder.input("x0", "bool"), builder.input("x1", "bool"))}
            )
            tensors = columns(["bool", "bool"])
            given = {f"x{i}": x for i, x in enumerate(tensors)}
            assert_same(run(program, given), [COUNTERPARTS[name](*tensors)], given, name)

    def test_second_derivative_of_pow_at_base_0(self):
        """With respect to the cotangent, which torch keeps finite."""
        made = derivatives("pow", ["float", "float"])
        at = {"x0": 0.0, "x1": 2.0, "g": 1.0, "hx0": 1.0, "hx1": 1.0}
        given = {n: torch.tensor([v], dtype=F64) for n, v in at.items()}
        assert run(made.second, given)[2].item() == 0.0


class TestKnownEdges:
    """The rules that people ask about, written out, so that torch changing its mind would show."""

    @pytest.mark.parametrize(
        ("name", "at", "slopes"),
        [
            ("maximum", (1.0, 1.0), (0.5, 0.5)),
            ("minimum", (1.0, 1.0), (0.5, 0.5)),
            ("maximum", (2.0, 1.0), (1.0, 0.0)),
            ("minimum", (-INF, -INF), (0.5, 0.5)),
            ("abs", (0.0,), (0.0,)),
            ("abs", (-0.0,), (0.0,)),
            ("sign", (3.0,), (0.0,)),
            ("floor", (3.5,), (0.0,)),
            ("sqrt", (0.0,), (INF,)),
            ("pow", (0.0, 0.0), (0.0, 0.0)),
            ("pow", (0.0, 1.0), (1.0, 0.0)),
            ("pow", (2.0, 3.0), (12.0, 8.0 * math.log(2.0))),
            ("softplus", (25.0,), (1.0,)),
            ("softplus", (20.0,), (1 / (1 + math.exp(-20.0)),)),
        ],
    )  # fmt: skip
    def test_slopes(self, name, at, slopes):
        made = derivatives(name, kinds_of(name))
        given = {f"x{i}": torch.tensor([x], dtype=F64) for i, x in enumerate(at)} | {
            "g": torch.ones(1, dtype=F64)
        }
        assert [x.item() for x in run(made.first, given)] == pytest.approx(slopes, rel=1e-15, abs=0.0)

    def test_a_selection_does_not_multiply(self):
        """An infinite cotangent of the branch that is not taken gives 0, not 0 * inf."""
        for name, x in (("where", None), ("maximum", 2.0), ("minimum", -2.0)):
            made = derivatives(name, kinds_of(name))
            given = {"x0": x, "x1": 0.0, "g": INF} if x else {"x0": True, "x1": 1.0, "x2": 2.0, "g": INF}
            tensors = {n: torch.tensor([v]) for n, v in given.items()}
            assert [y.item() for y in run(made.first, tensors)] == [INF, 0.0]

    def test_nan_wins_and_gets_the_gradient(self):
        made = derivatives("maximum", ["float", "float"])
        given = {n: torch.tensor([v], dtype=F64) for n, v in {"x0": NAN, "x1": 1.0, "g": 1.0}.items()}
        a, b = (torch.tensor([v], requires_grad=True, dtype=F64) for v in (NAN, 1.0))
        truth = torch.autograd.grad(torch.maximum(a, b), (a, b))
        assert run(made.value, given)[0].isnan().all()
        assert [x.item() for x in run(made.first, given)] == [x.item() for x in truth]
