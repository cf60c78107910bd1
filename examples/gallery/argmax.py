"""Argmax so far

The largest value and where it was: an int state beside a float one. The winner takes all of the gradient.
Ships as `sf.operators.RunningMax`.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf

DECLARED = (sf.operators.RunningMax,)


def draw(axes: Axes) -> None:
    """A random walk and its records."""
    x = torch.randn(150, generator=torch.Generator().manual_seed(6)).cumsum(0)
    top, at = sf.scan(sf.operators.RunningMax, value=x[None], index=torch.arange(150)[None])
    axes.plot(x, color="0.7")
    axes.step(range(150), top[0], where="post", label="largest so far")
    records = at[0].unique()
    axes.plot(records, x[records], "o", ms=4, label="where it was")
    axes.legend(frameon=False)
