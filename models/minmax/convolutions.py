"""The convolutions over two steps that stand before a MinMax neuron, and their one-token state."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import nn

import scanforge as sf

from ..convolution import entering
from ..mixer import State
from ..segments import Segments
from .cell import VectorCell
from .initialisers import small_init_init_, zero_bias_
from .part_configs import BasicConvConfig, GatedConvConfig

Tensor = torch.Tensor


class Previous(sf.Recurrence):
    """p_t = u_t, and what is read at t is p_{t-1}: with every kind of boundary that a scan knows"""

    u = sf.Input("b t d")
    p = sf.State("b d")

    def element(self) -> Any:
        """Take the input, whatever was held."""
        return sf.operators.LastFlagged(flag=1, value=self.u)

    def readout(self) -> Any:
        """What was held before."""
        return sf.previous(self.p)


class _TwoStepConv(VectorCell):
    """out_t from u_{t-1} and u_t; the state (B, d) is the last input."""

    part = "conv"
    _initial_state: Tensor

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.d_model = embedding_dim
        self.register_buffer("_initial_state", torch.zeros(embedding_dim))

    @abstractmethod
    def mix(self, before: Tensor, u: Tensor) -> Tensor:
        """The output from the input one step before, and the input."""

    def _run(self, x: Tensor, state: State, segments: Segments) -> tuple[Tensor, State]:
        if segments.group is not None:
            state, segments = entering(x, state[..., None], segments)
            state = state[..., 0]
        if segments.none:
            whole = torch.cat([state[:, None].to(x.dtype), x], 1)
            return self.mix(whole[:, :-1], x), x[:, -1].to(state.dtype) if x.shape[1] else state
        own = self.initial_state(1, state.dtype, x.device)
        before, after = segments.scan(
            Previous, u=x, initial_state=state, reset_state=own, backend=self.backend
        )
        return self.mix(before, x), after

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return self.mix(state.to(x_t.dtype), x_t), x_t.to(state.dtype)


class GatedConv(_TwoStepConv):
    """out_t = σ(g) ⊙ u_{t-1} + (1 - σ(g)) ⊙ u_t, with g (d,) learned.

    u (B, T, d) -> (B, T, d); the state (B, d), (1, d) or (d,) is the last input, zeros before the first. `g`
    is filled with `cfg.init_val`. Called as GatedConv(cfg)(u, state) it returns (out, state), as the
    original; the rest is the protocol's. ValueError for shapes that do not fit. Source: the gated
    convolution of the minmaxrnc package.

    Example:
        >>> import torch
        >>> from models.minmax import GatedConv, GatedConvConfig
        >>> conv = GatedConv(GatedConvConfig(1))
        >>> conv(torch.tensor([[[2.0], [4.0], [6.0]]])).flatten()
        tensor([1., 3., 5.], grad_fn=<ViewBackward0>)
    """

    def __init__(self, cfg: GatedConvConfig) -> None:
        super().__init__(cfg.embedding_dim)
        self.cfg = cfg
        self.g = nn.Parameter(torch.empty(cfg.embedding_dim))
        self.reset()

    def reset(self) -> None:
        """Fill g with its first value, and the initial state with zeros."""
        nn.init.constant_(self.g, self.cfg.init_val)
        nn.init.zeros_(self._initial_state)

    def mix(self, before: Tensor, u: Tensor) -> Tensor:
        """σ(g) of what was before, and the rest of what is now."""
        share = torch.sigmoid(self.g).to(u.dtype)
        return share * before + (1 - share) * u


class BasicConv(_TwoStepConv):
    """out_t = W [u_{t-1}, u_t] + b, with W (d, 2d).

    Shapes, state and errors are those of `GatedConv`; `cfg.init` says how W is drawn. Parameters: `conv_fn`.
    Source: the basic convolution of the minmaxrnc package.

    Example:
        >>> import torch
        >>> from models.minmax import BasicConv, BasicConvConfig
        >>> conv, u = BasicConv(BasicConvConfig(4)), torch.randn(2, 9, 4)
        >>> out, state = conv(u[:, :5], conv.initial_state(2))
        >>> tail, state = conv(u[:, 5:], state)
        >>> torch.allclose(torch.cat([out, tail], 1), conv(u), atol=1e-6)
        True
    """

    def __init__(self, cfg: BasicConvConfig) -> None:
        super().__init__(cfg.embedding_dim)
        self.cfg = cfg
        self.conv_fn = nn.Linear(2 * cfg.embedding_dim, cfg.embedding_dim)
        self.reset()

    def reset(self) -> None:
        """Draw the weights anew, and fill the initial state with zeros."""
        self.conv_fn.reset_parameters()
        if self.cfg.init == "scaled":
            small_init_init_(self.conv_fn.weight, 2 * self.d_model)
            zero_bias_(self.conv_fn)
        nn.init.zeros_(self._initial_state)

    def mix(self, before: Tensor, u: Tensor) -> Tensor:
        """The product with both inputs side by side."""
        y: Tensor = self.conv_fn(torch.cat([before, u], -1))
        return y


def create_convolution(cfg: BasicConvConfig | GatedConvConfig) -> GatedConv | BasicConv:
    """The convolution that a configuration describes."""
    return GatedConv(cfg) if isinstance(cfg, GatedConvConfig) else BasicConv(cfg)
