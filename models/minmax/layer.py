"""A MinMax layer: convolution, feedforward and neuron, each behind a norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..mixer import State
from ..norms import norm
from ..segments import Segments
from .cell import Cell
from .convolutions import create_convolution
from .feedforward import create_feedforward
from .neuron import MinMaxNeuron
from .part_configs import MinMaxLayerConfig

Tensor = torch.Tensor


class MinMaxLayer(Cell):
    """out = u + Neuron(norm(u + c + f)),  c = Conv(norm(u)),  f = FFN(norm(u + c))

    That is 0.3.0; in 0.1.0 the neuron reads norm(u + f). c and f never enter the residual stream. u (B, T,
    d_model) -> out of that shape; the state is {"conv": (B, d_model), "neuron": (B, d_state)}, each also
    without B. In the `first` layer of a network `cfg.first_in_dropout` is the feedforward's dropout.

    Called as MinMaxLayer(cfg, first)(u, state) it returns (out, state), as the original; the rest is the
    protocol's. Parameters: `conv`, `neuron`, `ffn`, `norm_conv`, `norm_ffn`, `norm_neuron`. ValueError for
    shapes that do not fit. Source: 0.1.0 and 0.3.0 of the minmaxrnc package.

    Example:
        >>> import torch
        >>> from models.minmax import MinMaxLayer, MinMaxRNCConfig
        >>> layer = MinMaxLayer(MinMaxRNCConfig(d_model=4, n_layers=1, d_state=5).layer_cfg, first=True)
        >>> out, state = layer(torch.randn(2, 9, 4), return_state=True)
        >>> {name: tuple(x.shape) for name, x in state.items()}
        {'conv': (2, 4), 'neuron': (2, 5)}
    """

    def __init__(self, cfg: MinMaxLayerConfig, first: bool = False) -> None:
        super().__init__()
        assert cfg.feedforward is not None  # the configuration refuses None
        self.cfg, self.d_model = cfg, cfg.d_model
        dropout = cfg.first_in_dropout if first else cfg.feedforward.dropout
        self.conv = create_convolution(cfg.conv)
        self.neuron = MinMaxNeuron(cfg.neuron)
        self.ffn = create_feedforward(replace(cfg.feedforward, embedding_dim=cfg.d_model, dropout=dropout))
        self.norm_conv = norm("MinMaxLayer", cfg.norm, cfg.d_model)
        self.norm_ffn = norm("MinMaxLayer", cfg.norm, cfg.d_model)
        self.norm_neuron = norm("MinMaxLayer", cfg.norm, cfg.d_model)

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """The parts' initial states by name."""
        return {
            "conv": self.conv.initial_state(batch, dtype, device),
            "neuron": self.neuron.initial_state(batch, dtype, device),
        }

    def reset(self) -> None:
        """Draw the weights of all parts anew."""
        for part in (self.conv, self.neuron, self.ffn):
            part.reset()
        for each in (self.norm_conv, self.norm_ffn, self.norm_neuron):
            reset_norm(each)

    def _checked(self, given: Any, batch: int, x: Tensor) -> dict[str, Tensor]:
        names = {"conv", "neuron"}
        if not isinstance(given, dict) or set(given) != names:
            got = sorted(given) if isinstance(given, dict) else type(given).__name__
            raise ValueError(
                f"MinMaxLayer: state is {got}, expected a dict with {sorted(names)}: pass what forward, step "
                "or initial_state returned."
            )
        return given

    def _run(self, x: Tensor, state: State, segments: Segments) -> tuple[Tensor, State]:
        flags = segments.flags
        c, conv = self.conv(self.norm_conv(x), state["conv"], True, **flags)
        n, neuron = self.neuron(self._read(x, c), state["neuron"], True, **flags)
        return x + n, {"conv": conv, "neuron": neuron}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        c, conv = self.conv.step(self.norm_conv(x_t), state["conv"])
        n, neuron = self.neuron.step(self._read(x_t, c), state["neuron"])
        return x_t + n, {"conv": conv, "neuron": neuron}

    def _read(self, u: Tensor, c: Tensor) -> Tensor:
        """What the neuron reads."""
        f = self.ffn(self.norm_ffn(u + c))
        read: Tensor = self.norm_neuron(u + c + f if self.cfg.adds_conv else u + f)
        return read


def reset_norm(module: nn.Module) -> None:
    """Ones and zeros again, where the norm has weights."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        module.reset_parameters()
