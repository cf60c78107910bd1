"""Complex diagonal, LRU

The layer of LRU and S5 as it is written in papers: complex tensors go in, and nothing else is said. They are
found at the call and run as pairs of real numbers; gradients follow torch's convention for complex ones.
Source: Orvieto et al., Resurrecting Recurrent Neural Networks for Long Sequences (2023), section 3.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class LRU(sf.Recurrence):
    """h_t = λ h_{t-1} + B u_t,  y_t = Re(C h_t) + D u_t;  λ, B and C may be complex"""

    u = sf.Input("b t d")
    lam = sf.Input("n")
    B, C = sf.Input("n d"), sf.Input("d n")
    D = sf.Input("d")
    h = sf.State("b n")

    def element(self):
        return sf.Affine(a=self.lam, b=sf.sum(self.B * self.u, "d"))

    def readout(self):
        return sf.real(sf.sum(self.C * self.h, "n")) + self.D * self.u


DECLARED = (LRU,)


def draw(axes: Axes) -> None:
    """The answer of three modes, one after another, to one push."""
    u = torch.zeros(1, 100, 1)
    u[:, 0] = 1.0
    lam = torch.polar(torch.tensor([0.95, 0.97, 0.99]), torch.tensor([0.9, 0.4, 0.1]))
    for n in range(3):
        B, C = torch.ones(1, 1, dtype=lam.dtype), torch.ones(1, 1, dtype=lam.dtype)
        y = sf.scan(LRU, u=u, lam=lam[n : n + 1], B=B, C=C, D=torch.zeros(1))
        axes.plot(y[0, :, 0], label=f"|λ| = {lam[n].abs():.2f}, angle {lam[n].angle():.1f}")
    axes.set(ylabel="output after one push")
    axes.legend(frameon=False)
