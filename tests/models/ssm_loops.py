"""The selective SSM one step after another, from the equations of the papers, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d, linear, pad, silu, softplus

from models.ssm import MultiScaleSSM, SelectiveSSM


def held(dt: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """exp(ΔA) and (ΔA)⁻¹(exp(ΔA) - 1)Δ: what h' = A h + u makes of h and of a u that is held for Δ."""
    equation = torch.zeros(*(dt[..., None] * A).shape, 2, 2, dtype=dt.dtype)
    equation[..., 0, 0], equation[..., 0, 1] = dt[..., None] * A, dt[..., None].expand_as(equation[..., 0, 1])
    solved = torch.matrix_exp(equation)
    return solved[..., 0, 0], solved[..., 0, 1]


def scanned(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, rule: str) -> tuple:
    """(y, last h); x, dt (b, t, d), A (d, n), B, C (b, t, d, n), h (b, d, n)."""
    decay, gain = held(dt, A) if rule == "zoh" else (torch.exp(dt[..., None] * A), dt[..., None])
    added, outputs = gain * B * x[..., None], []
    for a, b, c in zip(decay.unbind(1), added.unbind(1), C.unbind(1), strict=True):
        h = a * h + b
        outputs.append((c * h).sum(-1))
    return torch.stack(outputs, 1), h


def multiscale(layer: MultiScaleSSM, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """(y, last h) of MultiScaleSSM."""
    xs, z = layer.in_proj(u).chunk(2, -1)
    B, C = layer.B_proj(xs)[:, :, None], layer.C_proj(xs)[:, :, None]
    dt, A = softplus(layer.dt_proj(xs)), -layer.A_log.exp()
    y, h = scanned(xs, dt, A, B, C, h, layer.discretisation)
    return layer.out_proj((y + layer.D * xs) * silu(z)) * torch.sigmoid(layer.output_gate), h


def selective(layer: SelectiveSSM, u: Tensor) -> tuple[Tensor, Tensor]:
    """(y, last h) of SelectiveSSM from nothing."""
    d, n, groups = layer.d_inner, layer.d_state, layer.n_groups
    xs, z = layer.in_proj(u).chunk(2, -1)
    width = layer.conv1d.weight.shape[-1]
    past = pad(xs.transpose(1, 2), (width - 1, 0))
    xs = silu(conv1d(past, layer.conv1d.weight, layer.conv1d.bias, groups=d)).transpose(1, 2)
    made = linear(xs, layer.x_proj.weight)
    small, B, C = made.split([layer.dt_rank, groups * n, groups * n], -1)
    B, C = (v.unflatten(-1, (groups, n)).repeat_interleave(d // groups, 2) for v in (B, C))
    dt, A = softplus(layer.dt_proj(small)), -layer.A_log.exp()
    y, h = scanned(xs, dt, A, B, C, u.new_zeros(len(u), d, n), layer.discretisation)
    return layer.out_proj((y + layer.D * xs) * silu(z)), h
