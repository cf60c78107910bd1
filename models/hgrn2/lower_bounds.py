"""Lower bounds of forget gates: numbers, tensors, or learned together for a whole stack of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from .. import arguments
from ..mixer import state_dtype

if TYPE_CHECKING:
    from .heads import HeadMixer

Tensor = torch.Tensor


class LowerBounds(nn.Module):
    """γ^l = Σ_{0<j≤l} softmax(Γ)_j, the softmax over layers: 0 in the first layer, growing with depth, ≤ 1.

    One module for all layers of a stack: `gamma` is (n_layers, d), d the layers' heads times the size of
    their decaying axis. Γ = 0 at first. Computed in fp32 at least.

    Source: Qin et al., HGRN2 (arXiv 2404.07904), section 3; γ as in HGRN (arXiv 2311.04823), section 3.

    Example:
        >>> from models.hgrn2 import LowerBounds
        >>> LowerBounds(4, 2)()[:, 0].tolist()
        [0.0, 0.25, 0.5, 0.75]
    """

    def __init__(self, n_layers: int, d: int) -> None:
        super().__init__()
        arguments.positive("LowerBounds", n_layers=n_layers, d=d)
        self.n_layers, self.d = n_layers, d
        self.gamma = nn.Parameter(torch.zeros(n_layers, d))

    def forward(self) -> Tensor:
        """(n_layers, d), row l for layer l."""
        share = self.gamma.to(state_dtype(self.gamma.dtype)).softmax(0)
        return torch.cat([torch.zeros_like(share[:1]), share[1:].cumsum(0)])


def share_lower_bounds(layers: Sequence[HeadMixer]) -> LowerBounds:
    """Give the layers of a stack, in this order, one `LowerBounds`, and return it.

    Raises ValueError if there are no layers, or layers whose decaying axes differ.

    Example:
        >>> from torch import nn
        >>> from models.hgrn2 import HGRN2, share_lower_bounds
        >>> stack = nn.ModuleList(HGRN2(8, num_heads=2) for _ in range(3))
        >>> bounds = share_lower_bounds(stack)
        >>> [layer.lower_bound is bounds for layer in stack], [layer.layer_idx for layer in stack]
        ([True, True, True], [0, 1, 2])
    """
    layers = list(layers)
    sizes = sorted({layer.form.decaying for layer in layers})
    if len(sizes) != 1:
        raise ValueError(
            f"share_lower_bounds: the layers' (heads, size of the decaying axis) are {sizes}, expected one "
            "pair: give it the layers of one stack."
        )
    made = LowerBounds(len(layers), sizes[0][0] * sizes[0][1]).to(next(layers[0].parameters()))
    for layer_idx, layer in enumerate(layers):
        layer.bind(made, layer_idx)
    return made


def checked(
    where: str, bound: float | Tensor | LowerBounds, layer_idx: int, shape: tuple[int, int]
) -> float | Tensor | LowerBounds:
    """The bound: a number or a tensor of entries in [0, 1], as (heads, d) of `shape`, or the stack's."""
    width = shape[0] * shape[1]
    if isinstance(bound, LowerBounds):
        arguments.between(where, "layer_idx", layer_idx, 0, bound.n_layers - 1)
        if bound.d != width:
            raise ValueError(
                f"{where}: lower_bound is of d={bound.d}, expected {width}, the heads={shape[0]} times the "
                f"{shape[1]} entries of the axis that decays."
            )
        return bound
    if not isinstance(bound, Tensor):
        arguments.between(where, "lower_bound", bound, 0, 1)
        return float(bound)
    if bound.numel() not in {1, width}:
        raise ValueError(
            f"{where}: lower_bound has shape {tuple(bound.shape)}, expected {width} entries, {shape}, or one."
        )
    arguments.between(where, "lower_bound", bound.min().item(), 0, 1)
    arguments.between(where, "lower_bound", bound.max().item(), 0, 1)
    made = bound.detach().clone().reshape(shape if bound.numel() == width else (1, 1))
    return nn.Parameter(made) if isinstance(bound, nn.Parameter) else made
