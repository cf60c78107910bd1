"""Graphs of generated kernels: one for all sizes, whatever is planned for each, with eager's gradients.

What a forward pass keeps depends on the plan, and the plan on the sizes. A graph of open sizes keeps nothing.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import scanforge as sf
import scanforge.ops
from tests.catalogue import generator
from tests.pytorch.calls import weighed
from tests.pytorch.test_opcheck import examined
from tests.recurrences import BY_NAME, draw

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
F32 = torch.float32
SIZES = {"b": 4, "d": 3, "n": 2, "h": 1, "k": 16, "v": 17}  # no two alike: torch takes equal ones for one


def scan(name: str, options: dict[str, object], *floats: Tensor) -> tuple[Tensor, Tensor]:
    given = dict(zip(BY_NAME[name].inputs, floats, strict=True))
    return sf.scan(BY_NAME[name].recurrence, **given, backend="triton", return_final_state=True, **options)


def floats_of(name: str, steps: int, **sizes: int) -> tuple[Tensor, ...]:
    tensors, _ = draw(BY_NAME[name], F32, seed=steps, **(SIZES | {"t": steps} | sizes))
    return tuple(x.requires_grad_() for x in tensors.values())


def assert_same(compiled, eager, floats: tuple[Tensor, ...]) -> None:
    found = []
    for run in (compiled, eager):
        shown = run(*floats)
        found.append([*shown, *torch.autograd.grad(weighed(shown), floats)])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


CASES = [  # a recurrence, options, lengths that are planned differently
    pytest.param("RGLRU", {}, (9, 3), id="RGLRU"),
    pytest.param("RGLRU", {"lowering": "split"}, (70, 33, 5), id="split", marks=pytest.mark.slow),
    pytest.param("SelectiveSSM", {}, (20, 5), id="kept by memory", marks=pytest.mark.slow),
    pytest.param("HGRN2", {}, (70, 5), id="products over chunks from 64 steps on", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "options", "lengths"), CASES)
def test_req41_one_graph_for_all_lengths(name, options, lengths):
    run = partial(scan, name, options)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=True)
    for steps in lengths:
        assert_same(compiled, run, floats_of(name, steps))
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("lowering", [None, pytest.param("chunked", marks=pytest.mark.slow)])
def test_req41_packed_sequences(lowering):
    name = "HGRN2" if lowering else "RGLRU"
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda bounds, *floats: scan(name, {"cu_seqlens": bounds, "lowering": lowering}, *floats),
        backend=counter, fullgraph=True, dynamic=True,
    )  # fmt: skip
    for steps, ends in ((20, [0, 7, 7, 20]), (9, [0, 2, 9]), (33, [0, 1, 33])):
        bounds = torch.tensor(ends)
        options = {"cu_seqlens": bounds, "lowering": lowering}
        assert_same(partial(compiled, bounds), partial(scan, name, options), floats_of(name, steps, b=1))
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_req42_exported_without_gradients_and_differentiated(dynamic):
    """The node then keeps nothing for a backward pass, which finds it out again."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.rand(3, generator=generator(1)))

        def forward(self, x: Tensor) -> Tensor:
            return sf.scan(sf.operators.MinMax, r=x * self.w, s=x - 1, backend="triton")

    layer, x = Layer(), torch.randn(4, 33, 3, generator=generator(0))
    sizes = ({1: torch.export.Dim("t", min=2, max=99)},) if dynamic else None
    with torch.no_grad():
        program = torch.export.export(layer, (x,), dynamic_shapes=sizes)
    module = program.module()
    slopes = [torch.autograd.grad(m(x).cos().sum(), m.w)[0] for m in (module, layer)]
    assert torch.equal(*slopes)


@pytest.mark.parametrize("name", ["RGLRU", pytest.param("HGRN2", marks=pytest.mark.slow)])
def test_req43_opcheck(name):
    floats = floats_of(name, 12, b=2, k=3, v=2)
    assert examined(partial(scan, name, {}), floats, True) == {"SUCCESS"}
