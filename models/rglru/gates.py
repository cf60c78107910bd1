"""The projections of the gates."""

from __future__ import annotations

import torch
from torch import nn

from .. import arguments

Tensor = torch.Tensor


class BlockDiagonalLinear(nn.Module):
    """y[h, j] = Σ_i x[h, i] weight[h, i, j] + bias[h, j], on x of h blocks beside each other.

    weight (num_blocks, block, block), bias (num_blocks, block); x and y (..., num_blocks · block). Weights
    start as N(0, 1 / block), biases at 0.
    Raises ValueError if num_blocks does not divide width.
    Source: recurrentgemma's block-diagonal gates.

    Example:
        >>> import torch
        >>> from models.rglru import BlockDiagonalLinear
        >>> gate = BlockDiagonalLinear(6, 3)
        >>> gate(torch.randn(2, 5, 6)).shape
        torch.Size([2, 5, 6])
    """

    def __init__(
        self, width: int, num_blocks: int,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        arguments.positive("BlockDiagonalLinear", width=width, num_blocks=num_blocks)
        arguments.divides("BlockDiagonalLinear", ("num_blocks", num_blocks), ("width", width))
        block = width // num_blocks
        weight = torch.empty(num_blocks, block, block, device=device, dtype=dtype)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros_like(weight[:, 0]))
        nn.init.normal_(self.weight, std=block**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) -> (..., width)"""
        blocks = x.unflatten(-1, self.bias.shape)
        y = torch.einsum("...hi,hij->...hj", blocks, self.weight)
        return (y + self.bias.to(y.dtype)).flatten(-2)
