"""How long the CPU reference takes, forward and backward, by each of its ways to scan."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf

BATCH, LANES = 2, 64
LENGTHS = [64, 512, 2048]
LOWERINGS = ["loop", "parallel"]


def affine_inputs(steps: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(BATCH, steps, LANES, generator=generator, dtype=dtype)
    b = torch.randn(BATCH, steps, LANES, generator=generator, dtype=dtype)
    return {"a": a.requires_grad_(), "b": b.requires_grad_()}


def by_hand(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h, states = torch.zeros_like(b[:, 0]), []
    for gate, new in zip(a.unbind(1), b.unbind(1), strict=True):
        h = gate * h + new
        states.append(h)
    return torch.stack(states, dim=1)


def scan(inputs: dict[str, torch.Tensor], lowering: str) -> torch.Tensor:
    return sf.scan(sf.operators.Affine, **inputs, backend="reference", lowering=lowering)


def gate(steps: int, lowering: str) -> None:
    """No number is reported for a scan that is wrong."""
    exact = affine_inputs(steps, torch.float64)
    got, want = scan(exact, lowering), by_hand(**exact)
    torch.testing.assert_close(got, want)
    cotangent = torch.randn_like(want)
    gradients = torch.autograd.grad(got, list(exact.values()), cotangent)
    torch.testing.assert_close(gradients, torch.autograd.grad(want, list(exact.values()), cotangent))


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_forward(benchmark, lowering: str, steps: int):
    gate(steps, lowering)
    inputs = {name: leaf.detach() for name, leaf in affine_inputs(steps).items()}
    benchmark(scan, inputs, lowering)


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_forward_and_backward(benchmark, lowering: str, steps: int):
    gate(steps, lowering)
    inputs = affine_inputs(steps)

    def run() -> None:
        torch.autograd.grad(scan(inputs, lowering).sum(), list(inputs.values()))

    benchmark(run)
