"""RWKV-style decay with a bonus

The current token is not in the state yet when it is read: it enters with a weight of its own, `bonus`.
`sf.previous` is the state before the step. Source: Peng et al., Eagle and Finch (2024), equation 19.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class RWKV(sf.Recurrence):
    """S_t = diag(w_t) S_{t-1} + k_t v_tᵀ,  o_t = (S_{t-1} + diag(bonus) k_t v_tᵀ)ᵀ r_t,  w = e^(-e^decay)"""

    r, k, decay = sf.Input("b t h k"), sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    bonus = sf.Input("h k")
    S = sf.State("b h k v")

    def element(self):
        return sf.Affine(a=sf.exp(-sf.exp(self.decay)), b=self.k * self.v)

    def readout(self):
        return sf.sum(self.r * (sf.previous(self.S) + self.bonus * self.k * self.v), "k")


DECLARED = (RWKV,)


def draw(axes: Axes) -> None:
    """What one token contributes to itself and to those after it, for three bonuses."""
    k = torch.zeros(1, 40, 1, 1)
    k[:, 8] = 1.0
    one = torch.ones(1, 40, 1, 1)
    decay = torch.full((1, 40, 1, 1), -2.5)
    for bonus in (0.0, 1.0, 3.0):
        o = sf.scan(RWKV, r=one, k=k, v=one, decay=decay, bonus=torch.full((1, 1), bonus))
        axes.plot(o[0, :, 0, 0], marker=".", label=f"bonus {bonus:.0f}")
    axes.legend(frameon=False)
