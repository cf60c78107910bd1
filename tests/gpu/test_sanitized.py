"""What `make sanitize` runs under compute-sanitizer: each lowering and way of cutting time once, small.

Lengths and widths are no multiples of anything, memory that torch hands out is not filled beforehand, and the
third call of each is a replay. By itself it is a test like others: values and gradients are the loop's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import scanforge as sf
from models.hgrn2 import TiedKeys
from models.rglru.recurrence import RGLRUScan
from models.ssm import Euler
from scanforge import selfcheck
from scanforge.truth import as_given, lost
from tests.catalogue import chance, generator

pytestmark = pytest.mark.gpu
STEPS = 67
SIZES = selfcheck.MANY | {"t": STEPS, "d": 40, "n": 8, "k": 17, "v": 19}
CALLS: dict[str, tuple[selfcheck.Declared, dict[str, Any]]] = {
    "ordered_tile": (sf.operators.Affine, {"lowering": "ordered_tile"}),
    "split": (sf.operators.MinMax, {"lowering": "split", "reverse": True}),
    "integers": (sf.operators.RunningMax, {"lowering": "split"}),
    "reset, mask": (RGLRUScan, {"reset": 0.1, "mask": 0.8}),
    "packed": (RGLRUScan, {"cu_seqlens": [0, 1, 1, 40, STEPS]}),
    "expanded": (Euler, {"lowering": "ordered_tile"}),
    "chunked": (TiedKeys, {"lowering": "chunked"}),
    "chunked, packed": (TiedKeys, {"lowering": "chunked", "cu_seqlens": [0, 1, 1, 40, STEPS]}),
}


@pytest.fixture(autouse=True)
def unfilled() -> Iterator[None]:
    """Deterministic mode, which the other GPU tests are in, would write into what is not yet written."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward(name):
    declared, given = CALLS[name]
    rows = 1 if "cu_seqlens" in given else 2
    tensors, initial = selfcheck.drawn(declared, selfcheck.Form(None, torch.float32, SIZES | {"b": rows}))
    options = dict(given)
    for k, option in enumerate(("reset", "mask")):
        if option in options:
            options[option] = chance(generator(k), (rows, STEPS), options[option])
    if "cu_seqlens" in options:
        options["cu_seqlens"] = torch.tensor(options["cu_seqlens"])
        initial = tuple(x.expand(4, *x.shape[1:]).contiguous() for x in initial)
    bounds = selfcheck.BOUNDS[torch.float32]
    for _ in range(3):
        errors = lost(declared, tensors, initial, torch.device("cuda"), "triton", **options)
        assert all(e <= b for e, b in zip(errors, bounds, strict=True)), errors


@pytest.mark.parametrize("inplace", [False, True])
def test_a_step(inplace):
    tensors, initial = selfcheck.drawn(RGLRUScan, selfcheck.Form(None, torch.float32, SIZES))
    rows = {n: x[:, 0] if x.ndim > 1 else x for n, x in tensors.items()}
    want, _ = sf.step(RGLRUScan, as_given(initial), **rows, backend="reference")
    on_gpu = {n: x.cuda() for n, x in rows.items()}
    for _ in range(3):
        got, _ = sf.step(RGLRUScan, as_given([x.cuda() for x in initial]), **on_gpu, inplace=inplace)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)
