"""RetNet: retention

A matrix of key times value for each head, with one decay a head.
Source: Sun et al., Retentive Network (2023), equation 3.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class Retention(sf.Recurrence):
    """S_t = gamma S_{t-1} + k_t v_tᵀ,  o_t = S_tᵀ q_t"""

    q, k = sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    gamma = sf.Input("h", domain="unit")
    S = sf.State("b h k v")

    def element(self):
        return sf.Affine(a=self.gamma, b=self.k * self.v)

    def readout(self):
        return sf.sum(self.q * self.S, "k")


DECLARED = (Retention,)


def draw(axes: Axes) -> None:
    """One pair is stored, and asked for at every step after: what is left of it in each of three heads."""
    k = torch.zeros(1, 60, 3, 1)
    k[:, 5] = 1.0
    gamma = torch.tensor([0.85, 0.95, 0.99])
    o = sf.scan(Retention, q=torch.ones(1, 60, 3, 1), k=k, v=torch.ones(1, 60, 3, 1), gamma=gamma)
    for i, decay in enumerate(gamma):
        axes.plot(o[0, :, i, 0], label=f"gamma = {decay:.2f}")
    axes.legend(frameon=False)
