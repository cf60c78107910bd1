"""Time steps at the start: drawn log-uniformly, and turned into the bias that stands before the softplus."""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor


def time_steps(like: Tensor, low: float, high: float, floor: float = 0.0) -> Tensor:
    """Δ of the shape of `like`, log-uniform in [low, high], at least `floor`."""
    uniform = torch.rand(like.shape, dtype=torch.float32, device=like.device)
    return torch.exp(uniform * math.log(high / low) + math.log(low)).clamp(min=floor)


def before_softplus(dt: Tensor) -> Tensor:
    """The bias b with softplus(b) = dt, written so that a small dt keeps its digits."""
    return dt + torch.log(-torch.expm1(-dt))
