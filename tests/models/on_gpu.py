"""What a layer's tests on a GPU have in common: outcomes on a backend, and steps and chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import scanforge as sf
from models.mixer import Mixer, set_backend, tensors
from tests.catalogue import generator
from tests.models.protocol import in_pieces
from tests.tolerances import TOLERANCES, err

Build = Callable[[], Mixer]
BF16, F64 = torch.bfloat16, torch.float64


def outcome(build: Build, dtype: torch.dtype, backend: str) -> list[Tensor]:
    """y, the state if there is one, and the gradients of x and of every parameter."""
    torch.manual_seed(0)
    layer = build().to(BF16).to("cuda", dtype)
    set_backend(layer, backend)
    x = torch.randn(2, 130, 48, generator=generator(2)).to(BF16).to("cuda", dtype).requires_grad_()
    mask = torch.arange(130, device="cuda") >= torch.tensor([[0], [7]], device="cuda")
    reset = torch.arange(130, device="cuda").eq(61).expand(2, 130)
    stateless = getattr(layer, "bidirectional", False)
    made = layer(x, return_state=not stateless, mask=mask, reset=reset)
    y, state = (made, {}) if stateless else made
    (y.sin().sum() + sum(s.sum() for s in tensors(state))).backward()
    return [y, *tensors(state), *(p.grad for p in (x, *layer.parameters()))]


def check_as_good_as_on_the_reference(build: Build, dtype: torch.dtype) -> None:
    """Beyond what torch's projections and norms lose, kernels lose what the table allows them."""
    truth = outcome(build, F64, "reference")
    got, reference = outcome(build, dtype, "triton"), outcome(build, dtype, "reference")
    for x, y, want in zip(got, reference, truth, strict=True):
        assert x.dtype == y.dtype
        assert err(x, want) <= err(y, want) + TOLERANCES[dtype, "gradient"].value


def check_steps_and_chunks(build: Build) -> None:
    """Requirement 37, and that kernels ran."""
    torch.manual_seed(0)
    layer = build().cuda()
    x = torch.randn(2, 40, 48, device="cuda")
    whole = layer(x)
    for cuts in ([1] * 40, [7, 1, 32], [39, 1]):
        torch.testing.assert_close(in_pieces(layer, x, cuts)[0], whole, rtol=1e-5, atol=1e-5)
    assert sf.last_run().plan.backend == "triton"
