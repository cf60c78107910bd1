"""Mamba-2, state-space duality

A selective SSM whose decay is one number a head and step, so that a chunk is a masked matrix product.
Source: Dao & Gu, Transformers are SSMs (2024), section 7.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class Mamba2(sf.Recurrence):
    """S_t = exp(-dt_t e^A) S_{t-1} + dt_t B_t x_tᵀ,  y_t = S_tᵀ C_t + D x_t,  dt = softplus(raw + bias)"""

    x = sf.Input("b t h v")
    raw, A_log, bias, D = sf.Input("b t h"), sf.Input("h"), sf.Input("h"), sf.Input("h")
    B, C = sf.Input("b t n"), sf.Input("b t n")
    S = sf.State("b h n v")

    def element(self):
        dt = sf.softplus(self.raw + self.bias)
        return sf.Affine(a=sf.exp(-dt * sf.exp(self.A_log)), b=dt * self.B * self.x)

    def readout(self):
        return sf.sum(self.C * self.S, "n") + self.D * self.x


DECLARED = (Mamba2,)


def draw(axes: Axes) -> None:
    """The step size selects: where it is large the state takes the input in, where it is 0 it waits."""
    x = torch.linspace(0, 14, 160).sin()
    raw = torch.where((torch.arange(160) // 20) % 2 == 0, 0.5, -8.0)
    one, zero = torch.ones(1, 160, 1), torch.zeros(1)
    tensors = {"x": x.reshape(1, -1, 1, 1), "raw": raw.reshape(1, -1, 1), "B": one, "C": one}
    y = sf.scan(Mamba2, **tensors, A_log=zero, bias=zero, D=zero)
    axes.plot(x, color="0.7", label="input")
    axes.plot(y[0, :, 0, 0], label="output")
    axes.fill_between(range(160), -1, 1, where=raw > 0, color="C2", alpha=0.12, label="step size large")
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
