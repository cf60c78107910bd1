"""The sequential truth of the recurrences in `tests/recurrences.py`, by hand and independent of scanforge.

A step takes the states before it, whether it starts a segment [b], and one row of every input; it gives the
outputs and the states after it, each with the batch in front. `walk` goes from step to step in plain torch,
so ordinary autograd differentiates it. Nothing casts: hand in float64 for a reference.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, silu, softplus


def rg_lru(states, first, *, x, r, i, Lambda):
    """Griffin (arXiv 2402.19427), equations 1 to 4, with c = 8 and log a = -c softplus(Λ) r."""
    (h,) = states
    a = torch.exp(-8 * softplus(Lambda) * torch.sigmoid(r))
    h = a * h + torch.sqrt(1 - a**2) * (torch.sigmoid(i) * x)
    return (h,), (h,)


def rg_lru_documents(states, first, *, x, r, i, Lambda):
    """The same with recurrentgemma's rule: the input is not scaled where a document starts."""
    (h,) = states
    a = torch.exp(-8 * softplus(Lambda) * torch.sigmoid(r))
    h = a * h + torch.where(first[:, None], 1.0, torch.sqrt(1 - a**2)) * (torch.sigmoid(i) * x)
    return (h,), (h,)


def selective_ssm(states, first, *, u, dt, A, B, C, D):
    """Mamba (arXiv 2312.00752), equation 2 with exp for A and Euler for B, as its code has it."""
    (h,) = states
    h = torch.exp(dt[..., None] * A) * h + (dt * u)[..., None] * B[:, None, :]
    return (torch.einsum("bdn,bn->bd", h, C) + D * u,), (h,)


def mamba(states, first, *, u, dt, bias, A_log, B, C, D, z):
    (y,), states = selective_ssm(
        states, first, u=u, dt=softplus(dt + bias), A=-torch.exp(A_log), B=B, C=C, D=D
    )
    return (y * silu(z),), states


def hgrn2(states, first, *, q, f, v, lower):
    """HGRN2 (arXiv 2404.07904): the key is what the forget gate leaves."""
    (S,) = states
    g = lower + (1 - lower) * torch.sigmoid(f)
    S = torch.diag_embed(g) @ S + torch.einsum("bhk,bhv->bhkv", 1 - g, v)
    return (torch.einsum("bhk,bhkv->bhv", q, S),), (S,)


def gated_linear_attention(states, first, *, q, k, v, g):
    """GLA (arXiv 2312.06635), equation 3, with α = sigmoid(g)^(1/16)."""
    (S,) = states
    S = torch.exp(logsigmoid(g) / 16)[..., None] * S + k[..., None] * v[:, :, None, :]
    return ((q[..., None] * S).sum(2),), (S,)


def retention(states, first, *, q, k, v, gamma):
    """RetNet (arXiv 2307.08621), equation 6: one decay a head."""
    (S,) = states
    S = gamma[:, None, None] * S + torch.einsum("bhk,bhv->bhkv", k, v)
    return (torch.einsum("bhk,bhkv->bhv", q, S),), (S,)


def linear_attention(states, first, *, q, k, v):
    """Linear attention (arXiv 2006.16236), equations 18 to 20, normalised by max(|q·z|, 1) as in xLSTM."""
    S, z = states
    S, z = S + torch.einsum("bhk,bhv->bhkv", k, v), z + k
    weight = torch.einsum("bhk,bhk->bh", q, z).abs().clamp(min=1)
    return (torch.einsum("bhk,bhkv->bhv", q, S) / weight[..., None],), (S, z)


def gated_min_max(states, first, *, u, gate, w_r, b_r, w_s, temperature):
    (x,) = states
    r = w_r * u + b_r + torch.exp(-temperature * softplus(u))
    s = -torch.sigmoid(w_s * u)
    x = torch.maximum(torch.minimum(r, x), s)
    return (x * torch.sigmoid(gate),), (x,)


def decay(states, first, *, x, w):
    (h,) = states
    h = torch.sigmoid(w) * h + x
    return (h,), (h,)


def log_sum_exp(states, first, *, score, weight, temperature):
    """log Σ_{s≤t} w_s exp(τ score_s), with the largest exponent in front of the sum."""
    top, total = states
    new = torch.maximum(top, score * temperature)
    total = total * torch.exp(top - new) + softplus(weight) * torch.exp(score * temperature - new)
    return (new + total.log(),), (new, total)


def counted(states, first, *, x, f, keep, count):
    (h,) = states
    a = torch.where(keep[:, None], torch.sigmoid(f), torch.zeros_like(f))
    h = a * h + torch.where((count > 2)[:, None], x, -0.5 * x)
    return (h * count[:, None],), (h,)


def innovation(states, first, *, x, w):
    """Exponential smoothing; the output is the error of the forecast that the state before made."""
    (level,) = states
    rate = torch.sigmoid(w)
    after = (1 - rate) * level + rate * x
    return ((x - level) * after,), (after,)


def two_outputs(states, first, *, x, B, C):
    (h,) = states
    h = 0.75 * h + x[..., None] * B[:, None, :]
    return (torch.einsum("bdn,bn->bd", h, C), (h * x[..., None]).sum(1)), (h,)


def summing(states, first, *, x, w):
    """Outputs that lack axes: a sum over channels, one over batch and time (in `walk`), and the state."""
    (h,) = states
    h = w * h + x
    return ((h * x).sum(-1), h * h, h), (h,)


def heads(states, first, *, x, gate, w):
    (h,) = states
    a = torch.sigmoid(gate)[..., None]
    h = a * h + (1 - a) * torch.tanh(w * x)
    return (h.transpose(1, 2) * 2,), (h,)


def positional(states, first, *, x, p, w):
    """p is the same for the whole batch, w for the whole sequence."""
    (h,) = states
    h = torch.sigmoid(w + p) * h + x * p
    return (h,), (h,)


def lru(states, first, *, x, nu, theta, B_re, B_im, C_re, C_im, D):
    """LRU (arXiv 2303.06349), equations 5 to 7, with h complex."""
    h = torch.complex(*states)
    size = torch.exp(-torch.exp(nu))
    drive = torch.einsum("bd,dn->bn", x.to(h.dtype), torch.complex(B_re, B_im))
    h = torch.polar(size, theta) * h + torch.sqrt(1 - size**2) * drive
    y = torch.einsum("bn,dn->bd", h, torch.complex(C_re, C_im)).real + D * x
    return (y,), (h.real, h.imag)


def rows_of(tensors: dict[str, Tensor], axes: dict[str, str], length: int) -> list[dict[str, Tensor]]:
    """One dict of inputs a step; an input without t is the same in all of them."""
    columns = []
    for name, x in tensors.items():
        names = axes[name].split()
        columns.append(x.unbind(names.index("t")) if "t" in names else [x] * length)
    return [dict(zip(tensors, row, strict=True)) for row in zip(*columns, strict=True)]


def boundaries(batch: int, length: int, reset: Tensor | None, reverse: bool) -> list[Tensor]:
    """For each step, in which batch rows the step processed before it belongs to another segment.

    `reset[b, t]` is a boundary between t-1 and t: walking backwards, the state is new at t-1.
    """
    never = torch.zeros(batch, dtype=torch.bool)
    if reset is None:
        return [never] * length
    marks = list((reset.expand(batch, length) != 0).unbind(1))
    return [*marks[1:], never] if reverse else marks


def pick(rows: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a in the batch rows [b] where the condition holds, else b."""
    return torch.where(rows.reshape(-1, *[1] * (b.ndim - 1)), a, b)


def walk(step, rows, initial, reverse=False, reset=None, mask=None):
    """Outputs (a list of tuples, in time order) and final states.

    A segment enters with the initial state. Where the mask is False the states pass and the outputs are 0; a
    segment starts at its first real step.
    """
    batch, length, state = len(initial[0]), len(rows), initial
    new = boundaries(batch, length, reset, reverse)
    real = [None] * length if mask is None else list(mask.expand(batch, length).unbind(1))
    history, first = [()] * length, torch.ones(batch, dtype=torch.bool)
    for t in reversed(range(length)) if reverse else range(length):
        state = tuple(pick(new[t], x0, x) for x0, x in zip(initial, state, strict=True))
        first = first | new[t]
        outputs, after = step(state, first, **rows[t])
        if real[t] is not None:
            outputs = tuple(pick(real[t], y, torch.zeros_like(y)) for y in outputs)
            after = tuple(pick(real[t], x, before) for x, before in zip(after, state, strict=True))
        first = torch.zeros_like(first) if real[t] is None else first & ~real[t]
        history[t], state = outputs, after
    return history, state
