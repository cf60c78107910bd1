"""MinMax and hysteresis

A play operator: the state stays where it is until the input is more than a width away. The operator only
selects among its inputs, so values are exact in every order of evaluation, and the gradient flows to the one
that was selected. `sf.operators.MinMax` ships with the library.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class Play(sf.Recurrence):
    """x_t = max(min(u_t + width, x_{t-1}), u_t - width)"""

    u = sf.Input("b t d")
    width = sf.Input("d", domain="positive")
    x = sf.State("b d")

    def element(self):
        return sf.operators.MinMax(r=self.u + self.width, s=self.u - self.width)


DECLARED = (Play, sf.operators.MinMax)


def draw(axes: Axes) -> None:
    """Two widths under an oscillation that dies out."""
    t = torch.linspace(0, 8 * torch.pi, 400)
    u = (t.sin() * (1 - t / 40))[None, :, None].expand(1, -1, 2)
    x = sf.scan(Play, u=u, width=torch.tensor([0.2, 0.5]))
    for i, width in enumerate(("0.2", "0.5")):
        axes.plot(u[0, :, i], x[0, :, i], lw=1, label=f"width {width}")
    axes.set(xlabel="input", ylabel="state")
    axes.legend(frameon=False)
