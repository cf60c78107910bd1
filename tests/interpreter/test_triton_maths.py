"""The primitive table's Triton text: every row beside torch's text, the helpers in units of rounding."""

from __future__ import annotations

import pytest
import torch

from scanforge.ir.builder import Builder
from scanforge.ir.primitives import TABLE
from tests import programs
from tests.reference import test_primitives as reference
from tests.reference.test_primitives import columns, derivatives, kinds_of

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
F32, F64, INF = torch.float32, torch.float64, float("inf")


# Units in the last place that a function may be off, where exp2 and log are good to 2 (NumPy's, here). In
# float32 exp rounds x log2(e) before it takes the power of two, so that it is off by about |x| more.
UNITS = {
    "exp": 3, "log": 3, "expm1": 4, "log1p": 4, "tanh": 5, "sigmoid": 3, "softplus": 4, "silu": 4, "gelu": 4,
    "erf": 1, "sqrt": 0.501, "rsqrt": 2, "sin": 2, "cos": 2,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", sorted(programs.FUNCTIONS))
def test_units_in_the_last_place(name, dtype):
    x = programs.arguments(name, dtype)
    off = programs.units_off(x, programs.call(name, x), programs.FUNCTIONS[name][0])
    by_size = name in {"exp", "expm1", "sigmoid", "softplus", "silu"} and dtype == F32
    allowed = UNITS[name] + (x.double().abs() if by_size else 0 * x)
    worst = int((off / allowed).argmax())
    assert off[worst] <= allowed[worst], f"{name}({x[worst].item()!r}) is off by {off[worst]:.1f} units"


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_powers_in_units(dtype):
    """Of any base and exponent in float32; in float64 the error grows with the logarithm of the result."""
    g = torch.Generator().manual_seed(3)
    x = 10 ** (4 * torch.rand(500, generator=g, dtype=F64) - 2)
    p = 16 * torch.rand(500, generator=g, dtype=F64) - 8
    p = torch.where(torch.arange(500) % 3 == 0, p.round(), p).to(dtype)
    x = torch.where((p == p.round()) & (torch.arange(500) % 2 == 0), -x, x).to(dtype)
    off = programs.units_off(x, programs.call("pow", x, p), lambda x, p: x**p, p)
    bound = 1.0 if dtype == F32 else 2 + 2 * (p * x.abs().log()).abs().max().item()
    assert off.max() <= bound


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("power", [*reference.POWERS, 4.0, -3.0])
def test_constant_powers(power, dtype):
    """A number as the exponent: its own text, and torch's values at the edges too."""
    x = torch.tensor(reference.ONE, dtype=F64).to(dtype)
    made = derivatives("pow", ["float", "float"], {1: power})
    given = {"x0": x, "g": torch.ones_like(x), "hx0": torch.ones_like(x)}
    for label in ("value", "first"):
        program = getattr(made, label)
        got, truth = programs.run(program, given, dtype)[0], reference.run(program, given)[0]
        near = (got == truth) | (got.isnan() & truth.isnan())
        near |= (got - truth).abs() <= (2e-6 if dtype == F32 else 1e-13) * truth.abs()
        assert near.all(), f"x ** {power} {label}: {[(x[k], got[k], truth[k]) for k in (~near).nonzero()]}"


def test_nan_propagates_through_selections():
    nan, one = torch.tensor([float("nan")]), torch.ones(1)
    for name in ("minimum", "maximum"):
        assert programs.call(name, nan, one).isnan().all()
        assert programs.call(name, one, nan).isnan().all()


def test_whole_numbers():
    """The rows that take ints give ints."""
    for name in ("add", "sub", "mul", "neg", "abs", "sign", "minimum", "maximum"):
        kinds = kinds_of(name)
        builder = Builder(name, where="")
        program = builder.finish(
            {"y": builder.call(name, *(builder.input(f"x{i}", "int") for i in range(len(kinds))))}
        )
        given = {f"x{i}": x for i, x in enumerate(columns(kinds, whole=True))}
        assert torch.equal(programs.run(program, given, F32)[0], reference.run(program, given)[0])


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_row_and_its_derivatives(name, dtype):
    """Value, first and second derivative at edges, as the torch text of the same program has them."""
    kinds = kinds_of(name)
    tensors = [x.to(dtype) if x.is_floating_point() else x for x in columns(kinds)]
    if name == "gelu" and dtype == F32:  # torch's is NaN at infinity
        tensors = [x[x.abs() < INF] for x in tensors]
    if name == "expm1_of":  # its second operand is exp of the first
        tensors[1] = tensors[0].exp()
    made = derivatives(name, kinds)
    given = {f"x{i}": x for i, x in enumerate(tensors)}
    random = torch.Generator().manual_seed(5)
    for n in ("g", *(f"h{n}" for n in made.floats)):
        given[n] = torch.randn(tensors[0].shape, generator=random, dtype=F64).to(dtype)
    for label in ("value", "first", "second"):
        program = getattr(made, label)
        if not program.outputs:
            continue
        got = programs.run(program, given, dtype)
        truth = reference.run(program, given)
        for (output, _), x, y in zip(program.outputs, got, truth, strict=True):
            if y.is_floating_point():
                bound = 1e-5 if dtype == F32 else 1e-13
                near = (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= bound * y.abs() + 1e-30)
            else:
                near = x == y
            wrong = [
                {n: given[n][k].item() for n in given} | {"got": x[k].item(), "torch": y[k].item()}
                for k in (~near).nonzero().flatten()
            ]
            assert not wrong, f"{name} {label} {output}: {len(wrong)} wrong, {wrong[:3]}"
