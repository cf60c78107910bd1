"""What a scan is measured against: an addition of the same tensors, and MinMax as PyTorch users write it."""

from __future__ import annotations

import torch
from torch import Tensor


def addends(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Two random tensors, and room for their sum: `torch.add` moves the bytes of a forward scan."""
    x, y = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    return x, y, torch.empty_like(x)


def min_max_rounds(r: Tensor, s: Tensor, x0: Tensor) -> Tensor:
    """MinMax over axis 1 in log2(t) rounds of whole-tensor operations; r, s (b, t, d), x0 (b, d).

    After a round, the element at t is composed of twice as many steps up to t. Autograd differentiates it,
    so that it keeps every round, and splits the gradient otherwise than the loop where values are equal.

    Source: Hillis and Steele, Data parallel algorithms (1986).
    """
    span = 1
    while span < r.shape[1]:
        later_r, later_s = r[:, span:], s[:, span:]
        composed_s = torch.maximum(torch.minimum(later_r, s[:, :-span]), later_s)
        r = torch.cat([r[:, :span], torch.minimum(later_r, r[:, :-span])], dim=1)
        s = torch.cat([s[:, :span], composed_s], dim=1)
        span *= 2
    return torch.maximum(torch.minimum(r, x0[:, None]), s)
