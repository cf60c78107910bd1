"""The linear layer of ternary weights and 8-bit activations."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor
_SMALLEST = 1e-5  # of a scale: a token of zeros, or weights of zeros, stay zeros


class BitLinear(nn.Linear):
    """y = int8(LN(x)) · ternary(W)ᵀ + bias

    LN is a LayerNorm of each token without weights; int8(x) rounds to 127 steps of the token's largest |x|;
    ternary(W) rounds to {-1, 0, 1} times the mean of |W|. The gradient is that of LN(x)·Wᵀ + bias with both
    roundings held, so W and x learn through them. x (..., in_features) -> (..., out_features). The bias is
    not rounded. Every token is on its own, so a step gives what a whole sequence gives.

    Source: Ma et al., The Era of 1-bit LLMs (arXiv 2402.17764), section 2.

    Example:
        >>> import torch
        >>> from models.hgrn2 import BitLinear
        >>> layer = BitLinear(4, 3)
        >>> layer.ternary().div(layer.weight.abs().mean()).round().unique().numel() <= 3
        True
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        normed = F.layer_norm(x, (self.in_features,))
        return F.linear(_through(normed, _eight_bits(normed)), self.ternary(), self.bias)

    def ternary(self) -> Tensor:
        """The weights as they are used; their gradient goes to `weight` unchanged."""
        size = self.weight.abs().mean().clamp(min=_SMALLEST)
        return _through(self.weight, (self.weight / size).round().clamp(-1, 1) * size)


def _eight_bits(x: Tensor) -> Tensor:
    step = x.abs().amax(-1, keepdim=True).clamp(min=_SMALLEST) / 127
    return (x / step).round() * step


def _through(x: Tensor, rounded: Tensor) -> Tensor:
    """The rounded value, and the gradient to x as if it were not rounded."""
    return x + (rounded - x).detach()
