"""torch's own examination of the op, of everything that ships: schema, autograd, fake results, graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import scanforge as sf
from tests.pytorch.calls import Called, every

CALLS = every()
FEW = ("Affine", "RunningMax", "Kalman", "SelectiveSSM", "Summing")


class Recorder(TorchDispatchMode):
    """The last call of an op of scanforge."""

    call: tuple = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "scanforge":
            self.call = func, args
        return func(*args, **(kwargs or {}))


def examined(function, floats: tuple[Tensor, ...], gradient: bool) -> set[str]:
    """What opcheck says of the op call that `function` makes."""
    with Recorder() as recorder:
        function(*(x.detach().requires_grad_(gradient) for x in floats))
    op, args = recorder.call
    fresh = tree_map_only(
        Tensor, lambda x: x.detach().clone().requires_grad_(gradient and x.is_floating_point()), args
    )
    return set(torch.library.opcheck(op, fresh).values())


@pytest.mark.parametrize(
    "call",
    [pytest.param(c, id=c.name, marks=() if c.name in FEW else pytest.mark.slow) for c in CALLS],
)
@pytest.mark.parametrize("gradient", [True, False])
def test_req43_opcheck(call: Called, gradient):
    assert examined(call.scan, call.floats, gradient) == {"SUCCESS"}


@pytest.mark.parametrize("options", [{"reset": True}, {"mask": True}, {"cu_seqlens": True}], ids=str)
def test_req43_opcheck_of_options(options):
    flag = torch.rand(1, 9) > 0.4
    given = {"reset": flag, "mask": flag, "cu_seqlens": torch.tensor([0, 4, 4, 9])}
    chosen = {name: given[name] for name in options}
    a, b = torch.rand(1, 9, 3, dtype=torch.float64), torch.randn(1, 9, 3, dtype=torch.float64)
    assert examined(lambda a, b: sf.scan(sf.Affine, a=a, b=b, **chosen), (a, b), True) == {"SUCCESS"}
