"""The causal short convolution against a loop over windows, with every kind of boundary."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.convolution import CausalConv1d
from models.segments import Segments
from tests.catalogue import chance, generator
from tests.models.protocol import refused

F64 = torch.float64


def loop(conv: CausalConv1d, x: Tensor, state: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """One step after another, each sequence's last inputs in a list."""
    spans = [(b, 0, x.shape[1]) for b in range(x.shape[0])]
    if segments.cu_seqlens is not None:
        ends = segments.cu_seqlens.tolist()
        spans = [(0, first, end) for first, end in pairwise(ends)]
    y, after = torch.zeros_like(x), []
    for n, (b, first, end) in enumerate(spans):
        seen = [torch.zeros(conv.d, dtype=F64)] * conv.width + list(state[n].T)
        for t in range(first, end):
            if segments.reset is not None and segments.reset[b, t]:
                seen = [torch.zeros(conv.d, dtype=F64)] * (conv.width + conv.keep)
            if segments.mask is None or segments.mask[b, t]:
                seen = [*seen, x[b, t]]
                y[b, t] = sum(conv.weight[:, 0, -1 - j] * seen[-1 - j] for j in range(conv.width))
                y[b, t] += 0 if conv.bias is None else conv.bias
        after.append(torch.stack(seen[len(seen) - conv.keep :], -1) if conv.keep else state[n])
    return y, torch.stack(after)


BOUNDARIES = [(), ("reset",), ("mask",), ("reset", "mask"), ("cu",), ("cu", "reset", "mask")]


@pytest.mark.parametrize("flags", BOUNDARIES, ids="-".join)
@pytest.mark.parametrize(("width", "keep"), [(1, 0), (2, 1), (4, 3), (4, 4), (4, 6)])
def test_values_states_and_gradients(flags, width, keep):
    batch, steps, cu = 2, 11, None
    if "cu" in flags:
        batch, cu = 1, torch.tensor([0, 0, 3, 4, 11, 11])
    drawn = {
        "reset": chance(generator(1), (batch, steps), 0.2),
        "mask": chance(generator(2), (batch, steps), 0.7),
    }
    segments = Segments(cu_seqlens=cu, **{n: drawn[n] for n in flags if n != "cu"})
    torch.manual_seed(0)
    conv = CausalConv1d(3, width, keep=keep, dtype=F64)
    x = torch.randn(batch, steps, 3, dtype=F64).requires_grad_()
    state = torch.randn(segments.batch(x), 3, keep, dtype=F64).requires_grad_()
    got, want = conv(x, state, segments), loop(conv, x, state, segments)
    leaves = [x, state, *conv.parameters()] if keep else [x, *conv.parameters()]
    weights = [torch.randn_like(y) for y in want]
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
    gradients = [
        torch.autograd.grad(sum((w * y).sum() for w, y in zip(weights, ys, strict=True)), leaves)
        for ys in (got, want)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-13, atol=1e-13)


def test_it_is_torch_s_convolution():
    conv, x = CausalConv1d(5, 4), torch.randn(2, 9, 5)
    want = F.conv1d(x.transpose(1, 2), conv.weight, conv.bias, padding=3, groups=5)[..., :9]
    torch.testing.assert_close(conv(x)[0], want.transpose(1, 2))


@pytest.mark.parametrize("cut", [0, 1, 2, 5, 9])
def test_chunks_and_steps_are_one_run(cut):
    conv, x = CausalConv1d(5, 4, dtype=F64), torch.randn(2, 9, 5, dtype=F64)
    whole, after = conv(x)
    y, state = conv(x[:, :cut])
    parts = [y]
    for t in range(cut, 9):
        y_t, state = conv.step(x[:, t], state)
        parts.append(y_t[:, None])
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-13, atol=1e-13)
    assert torch.equal(state, after)


def test_padding_may_hold_nan_and_gets_no_gradient():
    conv, mask = CausalConv1d(2, 3), torch.tensor([[0, 1, 0, 1, 1, 0]]) == 1
    x = torch.randn(1, 6, 2).masked_fill(~mask[..., None], float("nan")).requires_grad_()
    y, state = conv(x, None, Segments(mask=mask))
    (y.sum() + state.sum()).backward()
    alone, _ = conv(x[mask][None].detach())
    torch.testing.assert_close(y[mask][None], alone)
    assert torch.equal(x.grad[~mask], torch.zeros(3, 2))
    assert all(p.grad.isfinite().all() for p in conv.parameters())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CausalConv1d(0, 4), ("d=0", "at least 1")),
        (lambda: CausalConv1d(3, 4, keep=2), ("keep=2", "width=4")),
        (lambda: CausalConv1d(3, 4)(torch.zeros(2, 5, 4)), ("(2, 5, 4)", "(B, T, 3)")),
        (lambda: CausalConv1d(3, 4)(torch.zeros(2, 5, 3), torch.zeros(2, 3, 4)), ("window", "(2, 3, 3)")),
    ],
)
def test_what_is_refused(make, words):
    refused(make, *words)
