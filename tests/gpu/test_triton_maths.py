"""The functions of the primitive table on a GPU, whose exponential and division are quick ones."""

from __future__ import annotations

import pytest
import torch

from scanforge.ir.primitives import TABLE
from tests import programs
from tests.reference import test_primitives as reference
from tests.reference.test_primitives import columns, derivatives, kinds_of

pytestmark = pytest.mark.gpu
F32, F64 = torch.float32, torch.float64

# Units that a function may be off in float32. exp rounds x log2(e) before it takes the power of two, so that
# it is off by about |x| more, and so are those that end in it.
UNITS = {
    "exp": 3, "log": 3, "expm1": 7, "log1p": 7, "tanh": 10, "sigmoid": 6, "softplus": 8, "silu": 7, "gelu": 8,
    "erf": 4, "sqrt": 0.501, "rsqrt": 4, "sin": 3, "cos": 3,
}  # fmt: skip
BY_SIZE = ("exp", "expm1", "sigmoid", "softplus", "silu")


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", sorted(programs.FUNCTIONS))
def test_units_in_the_last_place(name, dtype):
    x = programs.arguments(name, dtype)
    y = programs.call(name, x.cuda()).cpu()
    off = programs.units_off(x, y, programs.FUNCTIONS[name][0])
    allowed = UNITS[name] + (x.double().abs() if name in BY_SIZE and dtype == F32 else 0 * x)
    worst = int((off / allowed).argmax())
    assert off[worst] <= allowed[worst], f"{name}({x[worst].item()!r}) is off by {off[worst]:.1f} units"


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_row_at_edges(name):
    """Value and slopes beside torch's text on the same GPU; overflow, infinities, ties, NaN."""
    kinds = kinds_of(name)
    tensors = [x.to(F32) if x.is_floating_point() else x for x in columns(kinds)]
    if name == "gelu":  # torch's is NaN at infinity
        tensors = [x[x.abs() < float("inf")] for x in tensors]
    if name == "expm1_of":  # its second operand is exp of the first
        tensors[1] = tensors[0].exp()
    made = derivatives(name, kinds)
    given = {f"x{i}": x.cuda() for i, x in enumerate(tensors)}
    given["g"] = torch.ones_like(tensors[0], dtype=F32).cuda()
    for program in (made.value, made.first):
        if not program.outputs:
            continue
        truth = reference.run(program, given)
        for x, y in zip(programs.run(program, given, F32), truth, strict=True):
            near = x == y
            if y.is_floating_point():
                near |= (x.isnan() & y.isnan()) | ((x - y).abs() <= 1e-5 * y.abs() + 1e-6)
            wrong = [(*(v[k].item() for v in given.values()), x[k].item(), y[k].item())
                     for k in (~near).nonzero().flatten()]  # fmt: skip
            assert not wrong, f"{name}: {wrong[:3]}"


def test_powers():
    g = torch.Generator().manual_seed(3)
    x = (10 ** (4 * torch.rand(500, generator=g, dtype=F64) - 2)).to(F32)
    p = (16 * torch.rand(500, generator=g, dtype=F64) - 8).to(F32)
    y = programs.call("pow", x.cuda(), p.cuda()).cpu()
    assert programs.units_off(x, y, lambda x, p: x**p, p).max() <= 1
