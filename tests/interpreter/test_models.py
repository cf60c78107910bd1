"""Every declaration of `models` on generated kernels, against the reference in float64, gradients too."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from models.hgrn2.recurrences import ACTIVATIONS, Form
from models.minmax.convolutions import Previous
from models.minmax.neuron import LinearGated, SigmoidGated
from models.rglru.recurrence import GELUS, declared
from models.ssm import Euler, GroupedEuler, GroupedZeroOrderHold, ZeroOrderHold
from scanforge.recurrence import fused
from tests.catalogue import generator
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
F32, F64 = torch.float32, torch.float64
SIZES = {"b": 2, "t": 9, "d": 3, "n": 4, "g": 2, "h": 2, "k": 3, "v": 3}
DECLARATIONS = [
    Euler, ZeroOrderHold, GroupedEuler, GroupedZeroOrderHold, SigmoidGated, LinearGated, Previous,
    *(declared(8.0, gelu, first) for gelu in GELUS for first in (False, True)),
    *(Form(2, 3, 3, decay, keys, "silu", None).recurrence
      for decay, keys in (("key", "tied"), ("key", "free"), ("value", "free"))),
    *(pytest.param(Form(2, 3, 3, decay, "free", a, None).recurrence, marks=pytest.mark.slow)
      for decay in ("key", "value") for a in ACTIVATIONS if a != "silu"),
]  # fmt: skip


def drawn(axes: tuple[str, ...], kind: str, seed: int) -> torch.Tensor:
    x = torch.randn([SIZES[a] for a in axes], generator=generator(seed), dtype=F64)
    return x > 0.5 if kind == "bool" else x


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda d: d.__name__)
def test_kernels_are_the_reference(declaration):
    inputs = fused(declaration).inputs
    numbers = {f.name: drawn(f.axes, f.kind, i) for i, f in enumerate(inputs)}
    made = {}
    for dtype, backend in ((F64, "reference"), (F32, "triton")):
        given = {n: x if x.dtype == torch.bool else x.to(dtype).requires_grad_() for n, x in numbers.items()}
        y, after = sf.scan(declaration, **given, return_final_state=True, backend=backend)
        leaves = {n: x for n, x in given.items() if x.requires_grad}
        loss = (y * drawn_like(y)).sum() + (after * drawn_like(after)).sum()
        made[dtype] = (
            y,
            after,
            dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)),
        )
    (y, after, slopes), (want_y, want_after, want) = made[F32], made[F64]
    assert_close(y, want_y, "forward", "y")
    assert_close(after, want_after, "forward", "the final state")
    for name, x in slopes.items():
        assert_close(x, want[name], "gradient", name)


def drawn_like(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=generator(99), dtype=F64).to(x.dtype)
