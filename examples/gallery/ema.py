"""Exponential moving average

One number per channel says how much of yesterday is kept; its gradient sums over the batch and time.
A sigmoid keeps it between 0 and 1. The half-life is log(1/2) / log(a) steps.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class EMA(sf.Recurrence):
    """h_t = a h_{t-1} + (1-a) x_t,  a = sigmoid(w)"""

    x = sf.Input("b t d")
    w = sf.Input("d")
    h = sf.State("b d")

    def element(self):
        a = sf.sigmoid(self.w)
        return sf.Affine(a=a, b=(1 - a) * self.x)


DECLARED = (EMA,)


def draw(axes: Axes) -> None:
    """A noisy step and three averages of it."""
    x = (torch.arange(200) > 60).double() + 0.3 * torch.randn(200, generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([0.7, 0.9, 0.97], dtype=torch.float64)
    h = sf.scan(EMA, x=x[None, :, None].expand(1, -1, 3), w=torch.logit(keep))
    axes.plot(x, color="0.8", lw=1)
    for a, line in zip(keep, h[0].T, strict=True):
        axes.plot(line, label=f"a = {a:.2f}")
    axes.legend(frameon=False)
