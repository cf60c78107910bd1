"""Which dtype goes in, which comes out, and that autocast changes neither: the table of docs/pytorch.md."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import scanforge as sf
from tests import recurrences
from tests.catalogue import generator
from tests.documents import ROOT
from tests.pytorch.calls import Called, every, weighed

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
Decay = recurrences.declared.Decay
SHORT = {"fp16": F16, "bf16": BF16, "fp32": F32, "fp64": F64}

# x over time, w without time, the initial state -> outputs, computed in and final state
TABLE = [
    ("bf16", "bf16", None, "bf16", "fp32"),
    ("bf16", "fp32", None, "bf16", "fp32"),
    ("fp16", "fp32", None, "fp16", "fp32"),
    ("fp16", "fp16", "fp32", "fp16", "fp32"),
    ("fp32", "bf16", None, "fp32", "fp32"),
    ("bf16", "fp32", "fp32", "bf16", "fp32"),
    ("bf16", "fp64", None, "bf16", "fp64"),
    ("fp64", "bf16", "fp32", "fp64", "fp64"),
    ("fp32", "fp32", "bf16", "fp32", "fp32"),
]


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=F64).to(dtype)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: " ".join(map(str, row)))
@pytest.mark.parametrize("autocast", [None, F16, BF16], ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_req48_the_promotion_table(row, autocast, compiled):
    """Outputs from the inputs over time, states in what is computed, each gradient as its tensor."""
    of_x, of_w, of_h, of_y, of_state = row
    x = drawn(2, 5, 3, dtype=SHORT[of_x]).requires_grad_()
    w = drawn(3, dtype=SHORT[of_w], seed=1).requires_grad_()
    h = None if of_h is None else drawn(2, 3, dtype=SHORT[of_h], seed=2).requires_grad_()

    def scan(x, w, h):
        return sf.scan(Decay, x=x, w=w, initial_state=h, return_final_state=True)

    function = torch.compile(scan, backend="aot_eager", fullgraph=True) if compiled else scan
    with torch.autocast("cpu", autocast or BF16, enabled=autocast is not None):
        y, final = function(x, w, h)
        loss = y.float().sum() + final.float().sum()
    assert (y.dtype, final.dtype) == (SHORT[of_y], SHORT[of_state])
    loss.backward()
    for tensor in (x, w, *([] if h is None else [h])):
        assert tensor.grad.dtype == tensor.dtype


def test_req48_the_table_is_in_the_documentation():
    page = (ROOT / "docs/pytorch.md").read_text(encoding="utf-8")
    for of_x, of_w, of_h, of_y, of_state in TABLE:
        assert f"| {of_x} | {of_w} | {of_h or 'none'} | {of_y} | {of_state} |" in page


CALLS = [c for dtype in (F32, BF16) for c in every(dtype=dtype)]


@pytest.mark.parametrize("call", CALLS, ids=[f"{c.name}-{c.floats[0].dtype}" for c in CALLS])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_req48_autocast_changes_no_bit(call: Called, dtype):
    """The op computes in its own dtype whatever the mode: casts are the layers' business."""

    def outcome() -> list[Tensor]:
        wanted = [x.detach().clone().requires_grad_() for x in call.floats]
        outputs = call.scan(*wanted)
        loss = weighed(tuple(x.double() for x in outputs))
        return [*outputs, *torch.autograd.grad(loss, wanted, materialize_grads=True, allow_unused=True)]

    want = outcome()
    with torch.autocast("cpu", dtype):
        got = outcome()
    for x, y in zip(got, want, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


class Layer(nn.Module):
    """fp32 parameters, two of them of the recurrence itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.w = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(sf.scan(Decay, x=self.project(x), w=self.w))


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_req48_a_layer_under_autocast(dtype, inside, compiled):
    layer, x = Layer(), drawn(2, 6, 4, dtype=F32).requires_grad_()
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    with torch.autocast("cpu", dtype):
        y = run(x)
        loss = y.float().square().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert y.dtype == dtype
    assert x.grad.dtype == F32
    for p in layer.parameters():
        assert p.grad.dtype == F32
        assert p.grad.abs().sum() > 0
