"""The truth in float64 where a loop over time would take minutes: by doubling, and over chunks.

Gradients are written by hand, from states and a reverse affine scan; `tests/project` compares all of it with
the loops of `tests/loops.py` and `tests/recurrence_loops.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

CHUNK = 64


def doubled(combine: Callable[..., tuple[Tensor, ...]], *leaves: Tensor) -> tuple[Tensor, ...]:
    """The elements of steps 0..t composed, for every t; time is the last axis. Hillis and Steele, 1986."""
    span = 1
    while span < leaves[0].shape[-1]:
        later = combine(*(x[..., :-span] for x in leaves), *(x[..., span:] for x in leaves))
        leaves = tuple(torch.cat([x[..., :span], y], -1) for x, y in zip(leaves, later, strict=True))
        span *= 2
    return leaves


def affine(a: Tensor, b: Tensor) -> Tensor:
    """x_t = a_t x_{t-1} + b_t from 0."""
    return doubled(lambda ea, eb, la, lb: (la * ea, la * eb + lb), a, b)[1]


def min_max(r: Tensor, s: Tensor, x0: Tensor) -> Tensor:
    """x_t = max(min(r_t, x_{t-1}), s_t)"""

    def combine(er: Tensor, es: Tensor, lr: Tensor, ls: Tensor) -> tuple[Tensor, ...]:
        return torch.minimum(lr, er), torch.maximum(torch.minimum(lr, es), ls)

    r, s = doubled(combine, r, s)
    return torch.maximum(torch.minimum(r, x0[..., None]), s)


def max_plus(a: Tensor, b: Tensor, x0: Tensor) -> Tensor:
    """x_t = max(a_t + x_{t-1}, b_t)"""
    a, b = doubled(lambda ea, eb, la, lb: (la + ea, torch.maximum(la + eb, lb)), a, b)
    return torch.maximum(a + x0[..., None], b)


def larger(x: Tensor, y: Tensor) -> Tensor:
    """The slope of max(x, y) in x: a half where they are equal, as torch has it."""
    return (x > y).double() + 0.5 * (x == y)


def cotangents(jacobian: Tensor, g: Tensor) -> Tensor:
    """mu_t = g_t + J_{t+1} mu_{t+1}: what arrives at the state of every step."""
    shifted = torch.cat([jacobian[..., 1:], torch.zeros_like(jacobian[..., :1])], -1)
    return affine(shifted.flip(-1), g.flip(-1)).flip(-1)


def bare(name: str, leaves: dict[str, Tensor], x0: Tensor, g: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The states of one of three operators, and its leaves' gradients for a cotangent of every state."""
    first, second = leaves.values()
    scans = {"MinMax": min_max, "MaxPlus": max_plus}
    x = (
        affine(first, second + _only_first(first * x0[..., None]))
        if name == "Affine"
        else scans[name](first, second, x0)
    )
    before = torch.cat([x0[..., None], x[..., :-1]], -1)
    if name == "Affine":
        mu = cotangents(first, g)
        return x, {"a": mu * before, "b": mu}
    if name == "MinMax":
        outer = larger(torch.minimum(first, before), second)
        through = outer * larger(-before, -first)
        mu = cotangents(through, g)
        return x, {
            "r": mu * outer * larger(-first, -before),
            "s": mu * larger(second, torch.minimum(first, before)),
        }
    chosen = larger(first + before, second)
    mu = cotangents(chosen, g)
    return x, {"a": mu * chosen, "b": mu * larger(second, first + before)}


def _only_first(x: Tensor) -> Tensor:
    return torch.cat([x[..., :1], torch.zeros_like(x[..., 1:])], -1)


def matrix(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """o_t = S_t^T q_t with S_t = exp(log_decay_t) S_{t-1} + k_t v_t^T from 0, over chunks; (b, t, h, k or v).

    For decays whose product over a chunk float64 can be divided by. Torch differentiates it.
    """
    b, t, h, width = k.shape
    state = q.new_zeros(b, h, width, v.shape[-1])
    outputs = []
    for at in range(0, t, CHUNK):
        here = slice(at, at + CHUNK)
        total = log_decay[:, here].cumsum(1)
        queries, keys, values = q[:, here] * total.exp(), k[:, here] * (-total).exp(), v[:, here]
        scores = torch.einsum("bihk,bjhk->bhij", queries, keys).tril()
        outputs.append(
            torch.einsum("bhij,bjhv->bihv", scores, values) + torch.einsum("bihk,bhkv->bihv", queries, state)
        )
        state = total[:, -1].exp()[..., None] * (state + torch.einsum("bjhk,bjhv->bhkv", keys, values))
    return torch.cat(outputs, 1)


class AffineScan(torch.autograd.Function):
    """`affine` over the last axis, differentiable by its adjoint and not through the doubling."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        x = affine(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, x = ctx.saved_tensors
        mu = cotangents(a, g)
        return mu * torch.cat([torch.zeros_like(x[..., :1]), x[..., :-1]], -1), mu


def scan_time(a: Tensor, b: Tensor) -> Tensor:
    """The states of a (b, t, ...) from 0."""
    return AffineScan.apply(a.movedim(1, -1), b.movedim(1, -1)).movedim(-1, 1)


def rg_lru(x: Tensor, r: Tensor, i: Tensor, Lambda: Tensor) -> Tensor:
    """Griffin (arXiv 2402.19427), equations 1 to 4; x, r, i (b, t, d), Λ (d)."""
    log_a = -8 * softplus(Lambda) * torch.sigmoid(r)
    multiplier = torch.sqrt(-torch.expm1(2 * log_a))
    return scan_time(torch.exp(log_a), multiplier * torch.sigmoid(i) * x)


def mamba(
    u: Tensor, dt: Tensor, z: Tensor, B: Tensor, C: Tensor, bias: Tensor, D: Tensor, A_log: Tensor
) -> Tensor:
    """Mamba (arXiv 2312.00752), equation 2 and its gates; u, dt, z (b, t, d), B, C (b, t, n)."""
    step = softplus(dt + bias)
    decay = torch.exp(-step[..., None] * torch.exp(A_log))
    h = scan_time(decay, (step * u)[..., None] * B[:, :, None])
    return ((h * C[:, :, None]).sum(-1) + D * u) * silu(z)
