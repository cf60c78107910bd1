"""The feedforward blocks: two projections, plain or gated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from .initialisers import small_init_init_, wang_init_, zero_bias_
from .part_configs import FeedForwardConfig
from .versions import VERSIONS

Tensor = torch.Tensor


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)²"""
    return F.relu(x).square()


ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu^2": relu_squared,
    "gelu": F.gelu,
    "swish": F.silu,
    "sigmoid": torch.sigmoid,
    "selu": F.selu,
}


class FeedForward(nn.Module):
    """y = dropout(W_down act(W_up x + b_up) + b_down), on the last axis of x (..., embedding_dim).

    `cfg.act_fn` names the activation. Parameters: `proj_up`, `proj_down`. ValueError if the configuration
    has no embedding_dim. Source: the feedforward block of the minmaxrnc package.

    Example:
        >>> import torch
        >>> from models.minmax import FeedForwardConfig, create_feedforward
        >>> block = create_feedforward(FeedForwardConfig(2, 8, act_fn="swish", ffn_type="basic"))
        >>> block(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    halves = 1

    def __init__(self, cfg: FeedForwardConfig) -> None:
        super().__init__()
        if cfg.embedding_dim < 1:
            raise ValueError(
                f"{type(self).__name__}: embedding_dim={cfg.embedding_dim} is no size: write how many "
                "channels x has, at least 1."
            )
        self.cfg = cfg
        width = cfg.embedding_dim if cfg.embedding_dim_out == -1 else cfg.embedding_dim_out
        self.act = ACTIVATION[cfg.act_fn]
        self.proj_up = nn.Linear(cfg.embedding_dim, self.halves * cfg.proj_up_dim, bias=cfg.bias)
        self.proj_down = nn.Linear(cfg.proj_up_dim, width, bias=cfg.bias)
        self.dropout = nn.Dropout(cfg.dropout)
        self.reset()

    def reset(self) -> None:
        """Draw the weights anew."""
        self.proj_up.reset_parameters()
        self.proj_down.reset_parameters()
        if self.cfg.init == "scaled":
            d, hidden = self.cfg.embedding_dim, self.cfg.proj_up_dim
            small_init_init_(self.proj_up.weight, d)
            fan_in = VERSIONS[self.cfg.version].fan_in
            wang_init_(self.proj_down.weight, hidden if fan_in else d, self.cfg._num_blocks)
            zero_bias_(self.proj_up)
            zero_bias_(self.proj_down)

    def hidden(self, x: Tensor) -> Tensor:
        """What goes down again."""
        return self.act(self.proj_up(x))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., embedding_dim) -> (..., embedding_dim_out)."""
        y: Tensor = self.dropout(self.proj_down(self.hidden(x)))
        return y


class GatedFeedForward(FeedForward):
    """y = dropout(W_down (act(g) ⊙ v) + b_down) with (g, v) the halves of W_up x + b_up.

    Otherwise as `FeedForward`.

    Example:
        >>> import torch
        >>> from models.minmax import FeedForwardConfig, GatedFeedForward
        >>> GatedFeedForward(FeedForwardConfig(2, 90)).proj_up.weight.shape
        torch.Size([236, 90])
    """

    halves = 2

    def hidden(self, x: Tensor) -> Tensor:
        """What goes down again."""
        gate, value = self.proj_up(x).chunk(2, -1)
        y: Tensor = self.act(gate) * value
        return y


def create_feedforward(config: FeedForwardConfig) -> FeedForward:
    """The block that `config.ffn_type` names: "gated" or "basic".

    Example:
        >>> from models.minmax import FeedForwardConfig, create_feedforward
        >>> type(create_feedforward(FeedForwardConfig(2, 8, ffn_type="gated"))).__name__
        'GatedFeedForward'
    """
    return GatedFeedForward(config) if config.ffn_type == "gated" else FeedForward(config)
