"""The two normal initialisations of the MinMax network."""

from __future__ import annotations

from math import sqrt

import torch
from torch import nn

from .. import arguments

Tensor = torch.Tensor


def small_init_init_(param: Tensor, dim: int) -> Tensor:
    """Fill `param` with N(0, 2 / (5 dim)), and return it.

    Source: Nguyen & Salazar, Transformers without Tears (2019), arXiv 1910.05895, section 2.2.

    Example:
        >>> import torch
        >>> from models.minmax import small_init_init_
        >>> small_init_init_(torch.empty(2, 8), dim=8).shape
        torch.Size([2, 8])
    """
    arguments.positive("small_init_init_", dim=dim)
    return nn.init.normal_(param, 0.0, sqrt(2 / (5 * dim)))


def wang_init_(param: Tensor, dim: int, num_blocks: int) -> Tensor:
    """Fill `param` with N(0, (2 / (num_blocks √dim))²), and return it.

    Source: Wang & Komatsuzaki, GPT-J-6B (2021), the initialisation of output projections.

    Example:
        >>> import torch
        >>> from models.minmax import wang_init_
        >>> wang_init_(torch.empty(2, 8), dim=8, num_blocks=4).shape
        torch.Size([2, 8])
    """
    arguments.positive("wang_init_", dim=dim, num_blocks=num_blocks)
    return nn.init.normal_(param, 0.0, 2 / (num_blocks * sqrt(dim)))


def zero_bias_(linear: nn.Linear, value: float = 0.0) -> None:
    """Fill the bias of `linear`, if it has one."""
    if linear.bias is not None:
        nn.init.constant_(linear.bias, value)
