"""Last flagged value

Sample and hold, forward fill, copy-scan: the state is the value at the last flag, and so is the gradient's
way back. Ships as `sf.operators.LastFlagged`. Source: Blelloch, Prefix Sums and Their Applications (1990).
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf

DECLARED = (sf.operators.LastFlagged,)


def draw(axes: Axes) -> None:
    """A sine, held from flag to flag."""
    x = torch.linspace(0, 10, 200).sin()
    flag = (torch.rand(200, generator=torch.Generator().manual_seed(0)) < 0.08).int()
    held = sf.scan(sf.operators.LastFlagged, flag=flag[None], value=x[None])
    axes.plot(x, color="0.7")
    axes.step(range(200), held[0], where="post")
    axes.plot(flag.nonzero(), x[flag.bool()], "o", ms=4, label="flags")
    axes.legend(frameon=False)
