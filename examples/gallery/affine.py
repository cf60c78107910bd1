"""Affine, the gated sum

The recurrence under every linear state-space layer. Gates and inputs may be anything; where a gate is
exactly 0 the past is forgotten, where it is 1 it is kept whole. Ships with the library as `sf.Affine`.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf

DECLARED = (sf.Affine,)


def draw(axes: Axes) -> None:
    """A balance: interest, deposits, and a year in which it is paid out."""
    rate = torch.full((40,), 1.05)
    rate[25] = 0.0
    h = sf.scan(sf.Affine, a=rate[None], b=torch.ones(1, 40))
    axes.step(range(40), h[0], where="mid", label="5 % a step, deposits of 1")
    axes.axvline(25, color="0.7", ls=":", label="gate 0")
    axes.legend(frameon=False)
