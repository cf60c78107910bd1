"""BitLinear: rounded numbers, gradients that pass the rounding, tokens on their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.hgrn2 import BitLinear

F64 = torch.float64


def drawn(bias: bool = True) -> tuple[BitLinear, Tensor]:
    torch.manual_seed(0)
    return BitLinear(6, 5, bias).to(F64), torch.randn(2, 3, 6, dtype=F64).requires_grad_()


def rounded(layer: BitLinear, x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations and weights as the paper's equations round them, entry by entry."""
    normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    q = torch.empty_like(normed)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            top = max(abs(u) for u in normed[b, t].tolist())
            q[b, t] = torch.tensor(
                [round(u * 127 / top) * top / 127 for u in normed[b, t].tolist()], dtype=F64
            )
    size = sum(abs(w) for row in layer.weight.tolist() for w in row) / layer.weight.numel()
    w = torch.tensor(
        [[max(-1, min(1, round(w / size))) * size for w in row] for row in layer.weight.tolist()], dtype=F64
    )
    return q, w


@pytest.mark.parametrize("bias", [True, False])
def test_values(bias):
    layer, x = drawn(bias)
    q, w = rounded(layer, x.detach())
    want = q @ w.T + (layer.bias if bias else 0)
    torch.testing.assert_close(layer(x), want, rtol=1e-12, atol=1e-12)
    assert set(torch.round(layer.ternary() / layer.weight.abs().mean()).unique().tolist()) <= {-1.0, 0.0, 1.0}


def test_gradients_go_through_the_rounding():
    """W learns from the rounded activations, x from the ternary weights, both as if nothing was rounded."""
    layer, x = drawn()
    cotangent = torch.randn(2, 3, 5, dtype=F64)
    by_x, by_w, by_b = torch.autograd.grad(layer(x), [x, layer.weight, layer.bias], cotangent)
    normed = F.layer_norm(x, (6,))
    q, w = rounded(layer, x.detach())
    torch.testing.assert_close(by_x, torch.autograd.grad(normed, x, cotangent @ w)[0], rtol=1e-12, atol=1e-12)
    want = torch.einsum("bto,bti->oi", cotangent, q)
    torch.testing.assert_close(by_w, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_b, cotangent.sum((0, 1)))


def test_tokens_are_on_their_own():
    layer, x = drawn()
    torch.testing.assert_close(layer(x)[:, 1], layer(x[:, 1]), rtol=1e-13, atol=1e-13)
    loud = torch.cat([x[:, :1], 1000 * x[:, 1:].cumsum(1)], 1)
    torch.testing.assert_close(layer(loud)[:, 0], layer(x)[:, 0], rtol=1e-13, atol=1e-13)


def test_tokens_and_weights_of_zeros_stay_zeros():
    layer, x = drawn()
    y = layer(torch.zeros_like(x))
    torch.testing.assert_close(y, layer.bias.expand_as(y))
    with torch.no_grad():
        layer.weight.zero_()
    torch.testing.assert_close(layer(x), layer.bias.expand_as(y))
    assert layer(x[:, :0]).shape == (2, 0, 5)
