"""The MinMax neuron: bounds from the input, a clamped state, a gated projection back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import scanforge as sf

from ..mixer import State
from ..segments import Segments
from .cell import VectorCell
from .initialisers import small_init_init_, wang_init_, zero_bias_
from .part_configs import MinMaxNeuronConfig
from .versions import VERSIONS

Tensor = torch.Tensor


class SigmoidGated(sf.Recurrence):
    """x_t = max(min(r_t, x_{t-1}), s_t),  y_t = σ(g_t) x_t"""

    r, s, g = sf.Input("b t n"), sf.Input("b t n"), sf.Input("b t n")
    x = sf.State("b n")

    def element(self) -> Any:
        """The bounds."""
        return sf.operators.MinMax(r=self.r, s=self.s)

    def readout(self) -> Any:
        """The gated state."""
        return self.x * sf.sigmoid(self.g)


class LinearGated(SigmoidGated):
    """x_t = max(min(r_t, x_{t-1}), s_t),  y_t = g_t x_t"""

    def readout(self) -> Any:
        """The gated state."""
        return self.x * self.g


RECURRENCE: dict[str, type[sf.Operator] | type[sf.Recurrence]] = {
    "sigmoid": SigmoidGated,
    "linear": LinearGated,
    "none": sf.operators.MinMax,
}


class MinMaxNeuron(VectorCell):
    """x_t = max(min(r_t, x_{t-1}), s_t),  y_t = W_o(x_t ⊙ G_t) + b_o,  (r, s) = W_{r,s} u_t + b_{r,s}

    u (B, T, d_model), after dropout, -> y of that shape; the state (B, d_state) is x, and may be given as
    (d_state,) or (1, d_state). G is σ(W_g u + b_g) for the gate "sigmoid", W_g u + b_g for "linear", 1
    without an output gate. A step with r < s is the constant s. States only select among bounds, so they
    are the loop's bit for bit; at r = x or x = s the gradient goes half to each, as torch splits ties. NaN
    propagates. The initial state is zero, or learned with `cfg.train_init`.

    Called as MinMaxNeuron(cfg)(u, state) it returns (y, state), as the original; the rest is the protocol's.
    Parameters: `s`, `r`, `o`, `o_g`, `_initial_state`. ValueError for shapes that do not fit.
    Source: arXiv 2605.06384, with N = 1; 0.1.0 and 0.3.0 of the minmaxrnc package.

    Example:
        >>> import torch
        >>> from models.minmax import MinMaxNeuron, MinMaxNeuronConfig
        >>> neuron, u = MinMaxNeuron(MinMaxNeuronConfig(1, d_model=4, d_state=5)), torch.randn(2, 9, 4)
        >>> y, state = neuron(u[:, :8], return_state=True)
        >>> y_t, state = neuron.step(u[:, 8], state)
        >>> torch.allclose(y_t, neuron(u)[:, 8], atol=1e-6), tuple(state.shape)
        (True, (2, 5))
    """

    part = "neuron"

    def __init__(self, cfg: MinMaxNeuronConfig) -> None:
        super().__init__()
        self.cfg, self.d_model = cfg, cfg.d_model
        start = torch.zeros(cfg.d_state)
        if cfg.train_init:
            self._initial_state = nn.Parameter(start)
        else:
            self.register_buffer("_initial_state", start)
        self.s = nn.Linear(cfg.d_model, cfg.d_state)
        self.r = nn.Linear(cfg.d_model, cfg.d_state)
        self.o = nn.Linear(cfg.d_state, cfg.d_model)
        self.o_g = nn.Linear(cfg.d_model, cfg.d_state) if cfg.output_gate else None
        self.dropout = nn.Dropout(cfg.dropout)
        self.recurrence = RECURRENCE[cfg.gate_form]
        self.reset()

    def reset(self) -> None:
        """Draw the weights anew, and fill the initial state with zeros."""
        cfg = self.cfg
        for linear in (self.s, self.r, self.o, self.o_g):
            if linear is not None:
                linear.reset_parameters()
                zero_bias_(linear)
        if cfg.s_r_init == "small_init":
            small_init_init_(self.s.weight, cfg.d_model)
        if cfg.s_r_init != "kaiming":  # what torch draws is kaiming_uniform_ with a = √5
            small_init_init_(self.r.weight, cfg.d_model)
        if cfg.s_r_init == "asymmetric":
            zero_bias_(self.s, 1.0)
        fan_in = VERSIONS[cfg.version].fan_in
        wang_init_(self.o.weight, cfg.d_state if fan_in else cfg.d_model, cfg._num_blocks)
        if self.o_g is not None and fan_in:
            small_init_init_(self.o_g.weight, cfg.d_model)
        elif self.o_g is not None:
            self.o_g.reset_parameters()
        nn.init.zeros_(self._initial_state)

    def _run(self, x: Tensor, state: State, segments: Segments) -> tuple[Tensor, State]:
        read, after = segments.scan(
            self.recurrence,
            initial_state=state,
            reset_state=self.initial_state(1, state.dtype, x.device),
            backend=self.backend,
            **self._inputs(x),
        )
        return self.o(read), after

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        read, after = sf.step(self.recurrence, state, backend=self.backend, **self._inputs(x_t))
        return self.o(read), after

    def _inputs(self, u: Tensor) -> dict[str, Any]:
        """The bounds, and the gate if there is one."""
        u = self.dropout(u)
        bounds = {"r": self.r(u), "s": self.s(u)}
        return bounds if self.o_g is None else bounds | {"g": self.o_g(u)}
