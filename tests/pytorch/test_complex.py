"""Complex tensors, found at the call: an LRU is eager, compiled, exported, mapped and differentiated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jvp, vmap

import scanforge as sf
from tests.catalogue import generator
from tests.tolerances import assert_close

C128, F64 = torch.complex128, torch.float64


class Diagonal(sf.Recurrence):
    """h_t = λ h_{t-1} + B_t, complex; y_t = the whole of C_t h_t: the core of LRU and S5"""

    lam = sf.Input("n")
    B = sf.Input("b t n")
    C = sf.Input("n")
    h = sf.State("b n")

    def element(self):
        return sf.Affine(a=self.lam, b=self.B)

    def readout(self):
        return sf.sum(self.C * self.h, "n")


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = C128) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=dtype)


def tensors() -> tuple[Tensor, ...]:
    """Decays inside the unit circle, inputs, outputs' weights, an initial state."""
    size = torch.rand(3, generator=generator(0), dtype=F64)
    return torch.polar(size, 6 * size), drawn(2, 5, 3, seed=1), drawn(3, seed=2), drawn(2, 3, seed=3)


def scan(lam: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return sf.scan(Diagonal, lam=lam, B=b, C=c, initial_state=h, return_final_state=True)


def loop(lam: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(b.shape[1]):
        h = lam * h + b[:, t]
        outputs.append((c * h).sum(-1))
    return torch.stack(outputs, 1), h


def outcome(function, given: tuple[Tensor, ...]) -> list[Tensor]:
    """Outputs, and gradients of a real loss that sees moduli and phases."""
    wanted = [x.detach().clone().requires_grad_() for x in given]
    y, h = function(*wanted)
    loss = y.abs().square().sum() + (y.real * y.imag).sum() + h.imag.sum()
    return [y, h, *torch.autograd.grad(loss, wanted)]


def test_values_and_gradients_by_torchs_convention():
    """Conjugates as torch has them: the gradient of a real loss, over re + i im."""
    for x, y in zip(outcome(scan, tensors()), outcome(loop, tensors()), strict=True):
        assert_close(x, y, "gradient")


def test_gradcheck():
    wanted = [x.requires_grad_() for x in tensors()]
    assert gradcheck(scan, wanted)
    assert gradgradcheck(lambda lam, b: scan(lam, b, *wanted[2:])[0], wanted[:2])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled(backend):
    compiled = torch.compile(scan, backend=backend, fullgraph=True, dynamic=True)
    for x, y in zip(outcome(compiled, tensors()), outcome(scan, tensors()), strict=True):
        assert_close(x, y, "gradient")


def test_vmap_and_jvp():
    lam, b, c, h = tensors()
    several = torch.stack([b, 2 * b, b.conj().resolve_conj()])
    got = vmap(lambda b: scan(lam, b, c, h)[0])(several)
    assert_close(got, torch.stack([loop(lam, x, c, h)[0] for x in several]), "forward")
    tangents = drawn(3, seed=4), drawn(2, 5, 3, seed=5)
    moved, truth = (jvp(lambda lam, b, f=f: f(lam, b, c, h), (lam, b), tangents)[1] for f in (scan, loop))
    for x, y in zip(moved, truth, strict=True):
        assert_close(x, y, "gradient")


def test_exported():
    class Layer(torch.nn.Module):
        def forward(self, lam, b, c, h):
            return scan(lam, b, c, h)

    given, t = tensors(), torch.export.Dim("t", min=2, max=999)
    program = torch.export.export(Layer(), given, dynamic_shapes=(None, {1: t}, None, None))
    longer = (given[0], drawn(2, 40, 3, seed=7), *given[2:])
    for x, y in zip(program.module()(*longer), loop(*longer), strict=True):
        assert_close(x, y, "forward")


@pytest.mark.parametrize("lazy", [torch.conj, lambda x: x.conj().imag.unsqueeze(0)[0] * 1j])
def test_lazily_conjugated_inputs(lazy):
    """Views that negate or conjugate when they are read."""
    lam, b, c, h = tensors()
    for x, y in zip(scan(lam, lazy(b), c, h), loop(lam, lazy(b), c, h), strict=True):
        assert_close(x, y, "forward")


def test_a_real_leaf_beside_a_complex_one():
    lam, b, c, h = tensors()
    for x, y in zip(scan(lam, b.real, c, h), loop(lam, b.real, c, h), strict=True):
        assert_close(x, y, "forward")
