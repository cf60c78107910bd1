"""What `sf.source` shows of kernels is what a GPU is given, kernel by kernel."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from scanforge import listing, tape
from scanforge.cache import kernel_text
from scanforge.example import USUAL, example
from tests.matrix_recurrences import Matrix
from tests.recurrence_declarations import RGLRU, SelectiveSSM

pytestmark = pytest.mark.gpu
CASES = {
    "ordered tile": (sf.Affine, {"b": 8, "t": 300, "d": 256}),
    "split": (sf.Affine, {"b": 1, "t": 32768, "d": 64}),
    "fused": (RGLRU, {"b": 8, "t": 512, "d": 256}),
    "held axis": (SelectiveSSM, {"b": 2, "t": 512, "d": 64, "n": 16}),
    "chunked": (Matrix(read="gated").recurrence(), {"b": 2, "t": 256, "h": 2, "k": 64, "v": 64}),
    "chunked, on values": (
        Matrix(decay="on values").recurrence(),
        {"b": 2, "t": 256, "h": 2, "k": 64, "v": 64},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_what_is_shown_is_what_runs(name, dtype, monkeypatch):
    operator, sizes = CASES[name]
    launched, launch = [], tape.launch

    def note(function, *rest) -> None:
        launched.append(kernel_text(function))
        launch(function, *rest)

    call = example(operator, None, sizes, USUAL)
    tensors = {n: torch.rand(x.shape, device="cuda", dtype=dtype) for n, x in call.tensors.items()}
    monkeypatch.setattr(tape, "launch", note)
    sf.scan(operator, **tensors)
    found = {"forward": [*launched]}
    learnt = [x.requires_grad_() for x in tensors.values()]
    y, final = sf.scan(operator, **tensors, return_final_state=True)
    launched.clear()
    torch.autograd.grad([y, final], learnt, [torch.rand_like(y), torch.rand_like(final)])
    found["backward"] = [*launched]
    for way, texts in found.items():
        assert texts, way
        assert [x.text for x in listing.launches(call.traced.text, way, call.sizes, dtype)] == texts, way
