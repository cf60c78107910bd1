"""Streaming log-sum-exp

The running normaliser of a softmax: a maximum that has been seen, and a sum relative to it, so that nothing
overflows. Merging two such pairs is associative. Ships as `sf.operators.LogSumExp`.
Source: Milakov & Gimelshein, Online normalizer calculation for softmax (2018).
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class RunningLogSumExp(sf.Recurrence):
    """y_t = log Σ_{s≤t} exp(x_s)"""

    x = sf.Input("b t d")
    top = sf.State("b d", initial=float("-inf"))
    total = sf.State("b d")

    def element(self):
        return sf.operators.LogSumExp(m=self.x, s=1.0)

    def readout(self):
        return self.top + sf.log(self.total)


DECLARED = (RunningLogSumExp, sf.operators.LogSumExp)


def draw(axes: Axes) -> None:
    """A sequence beyond the range of exp in fp32, its running maximum and log-sum-exp."""
    x = 5 * torch.randn(60, generator=torch.Generator().manual_seed(1)) + torch.linspace(100, 140, 60)
    y = sf.scan(RunningLogSumExp, x=x[None, :, None])
    axes.plot(x, ".", color="0.7", label="x")
    axes.plot(x.cummax(0).values, ls=":", label="running maximum")
    axes.plot(y[0, :, 0], label="log-sum-exp so far")
    axes.legend(frameon=False)
