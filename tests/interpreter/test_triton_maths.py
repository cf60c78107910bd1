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
F32, F64 = torch.float32, torch.float64


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_row_and_its_derivatives(name, dtype):
    """Value, first and second derivative at edges, as the torch text of the same program has them."""
    kinds = kinds_of(name)
    tensors = [x.to(dtype) if x.is_floating_point() else x for x in columns(kinds)]
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
