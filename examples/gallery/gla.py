"""Gated linear attention

Each key channel has a gate of its own at every step. Retention is the case of one constant gate a head,
HGRN2 that of keys tied to 1 - gate. Source: Yang et al., Gated Linear Attention Transformers (2023), eq. 3.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class GLA(sf.Recurrence):
    """S_t = diag(g_t) S_{t-1} + k_t v_tᵀ,  o_t = S_tᵀ q_t,  g = sigmoid(gate)^(1/16)"""

    q, k, gate = sf.Input("b t h k"), sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    S = sf.State("b h k v")

    def element(self):
        return sf.Affine(a=sf.exp(-sf.softplus(-self.gate) / 16), b=self.k * self.v)

    def readout(self):
        return sf.sum(self.q * self.S, "k")


DECLARED = (GLA,)


def draw(axes: Axes) -> None:
    """Two keys; half way, the gate of the second closes."""
    one = torch.ones(1, 80, 1, 1)
    k = torch.zeros(1, 80, 1, 2)
    k[:, 5, :, 0] = k[:, 5, :, 1] = 1.0
    gate = torch.full((1, 80, 1, 2), 6.0)
    gate[:, 40, :, 1] = -300.0
    for i in range(2):
        q = torch.eye(2)[i].expand(1, 80, 1, 2)
        axes.plot(sf.scan(GLA, q=q, k=k, gate=gate, v=one)[0, :, 0, 0], label=f"asked for key {i}")
    axes.legend(frameon=False)
