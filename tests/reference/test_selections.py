"""Chains of minimum, maximum and where against torch: ties, infinities, NaN, in operands and cotangents."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from scanforge.emit.torch_text import function
from scanforge.ir.builder import Builder
from scanforge.ir.program import Program
from scanforge.prune import tidy
from scanforge.vjp import pull_back

INF, NAN, F64 = math.inf, math.nan, torch.float64
NAMES = ("a", "b", "c")
EDGES = list(itertools.product([-INF, -1.0, 0.0, 1.0, INF, NAN], repeat=3))
COTANGENTS = [1.0, -3.0, INF, NAN]


class Symbols:
    """The functions of a chain, on Values."""

    def maximum(self, a, b):
        return a.call("maximum", b)

    def minimum(self, a, b):
        return a.call("minimum", b)

    def where(self, c, a, b):
        return c.call("where", a, b)

    def sqrt(self, a):
        return a.call("sqrt")


class Tensors:
    """The same on tensors."""

    maximum, minimum, where, sqrt = (
        staticmethod(f) for f in (torch.maximum, torch.minimum, torch.where, torch.sqrt)
    )


CHAINS: dict[str, Callable] = {
    "alone": lambda f, a, b, c: f.maximum(a, b),
    "two": lambda f, a, b, c: f.maximum(f.minimum(a, b), c),
    "three": lambda f, a, b, c: f.minimum(f.maximum(f.maximum(a, b), c), a * 0.5),
    "two ways": lambda f, a, b, c: f.maximum(f.minimum(a, b), f.minimum(b, c)),
    "where before": lambda f, a, b, c: f.maximum(f.where(a < b, a, c), b),
    "where after": lambda f, a, b, c: f.where(a < b, f.maximum(a, c), f.minimum(b, c)),
    "wheres": lambda f, a, b, c: f.where(a < b, f.where(b < c, a, b), c),
    "out of the domain": lambda f, a, b, c: f.sqrt(f.maximum(f.minimum(a, b), c * 0.0)),
}
every_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)


def derived(chain: Callable) -> Program:
    """The gradients of a chain, from g."""
    builder = Builder("value", where="")
    program = builder.finish({"y": chain(Symbols(), *(builder.input(n, "float") for n in NAMES))})
    builder = Builder("gradients", where="")
    given = {n: builder.input(n, "float") for n in NAMES}
    seed = {"y": builder.input("g", "float")}
    found = pull_back(builder, program, builder.replay(program, given), seed, NAMES)
    return tidy(builder.finish({n: found.get(n, builder.const(0.0, "float")) for n in NAMES}))


def columns() -> dict[str, Tensor]:
    """All combinations of the operands with the cotangents."""
    rows = [(*x, g) for x in EDGES for g in COTANGENTS]
    return {
        n: torch.tensor(c, dtype=F64) for n, c in zip((*NAMES, "g"), zip(*rows, strict=True), strict=True)
    }


@every_chain
def test_gradients_are_torchs(chain):
    """Where a gate is closed it is 0 whatever the cotangent; a NaN operand leaves both gates open."""
    given, program = columns(), derived(chain)
    names: dict = {}
    exec("import torch\nfrom torch import inf, nan\n" + function(program, "f", ""), names)
    leaves = {n: given[n].clone().requires_grad_() for n in NAMES}
    wanted = [*leaves.values()]
    truth = torch.autograd.grad(chain(Tensors, *wanted), wanted, given["g"], allow_unused=True)
    got = names["f"](*(given[v.name] for v in program.inputs))
    for n, x, y in zip(NAMES, got, truth, strict=True):
        y = torch.zeros_like(given[n]) if y is None else y
        same = (x == y) | (x.isnan() & y.isnan())
        wrong = [{m: v[k].item() for m, v in given.items()} for k in (~same.expand_as(y)).nonzero().flatten()]
        assert not wrong, f"{n}: {wrong[:4]}\n{function(program, 'f', '')}"


def test_a_root_below_its_floor_has_slope_0():
    """sqrt(maximum(x, 0)): 0 times the infinite slope is not NaN."""
    builder = Builder("value", where="")
    x = builder.input("x", "float")
    program = builder.finish({"y": x.call("maximum", 0.0).call("sqrt")})
    builder = Builder("gradients", where="")
    x, g = builder.input("x", "float"), builder.input("g", "float")
    found = pull_back(builder, program, builder.replay(program, {"x": x}), {"y": g}, ["x"])
    names: dict = {}
    exec("import torch\n" + function(tidy(builder.finish(found)), "f", ""), names)
    (got,) = names["f"](torch.tensor([-1.0, 4.0]), torch.ones(2))
    assert got.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("length", [2, 3, 7])
def test_a_long_chain_costs_the_cotangent_one_gated_product(length):
    """Between it and the first operand's gradient; all else is off its way."""
    builder = Builder("value", where="")
    operands = [builder.input(f"x{i}", "float") for i in range(length + 1)]
    y = operands[0]
    for i, x in enumerate(operands[1:]):
        y = y.call("maximum" if i % 2 else "minimum", x)
    program = builder.finish({"y": y})
    builder = Builder("gradients", where="")
    given = {v.name: builder.input(v.name, "float") for v in program.inputs}
    seed = {"y": builder.input("g", "float")}
    found = pull_back(builder, program, builder.replay(program, given), seed, ["x0"])
    lines = tidy(builder.finish(found)).lines
    reached = {"g"}
    on_its_way = []
    for line in lines:
        if reached.intersection(line.args):
            reached.add(line.var.name)
            on_its_way.append(line.op)
    assert on_its_way == ["gated"]
