"""Segments: any operator with a flag

An operator with a flag beside its leaves starts afresh where the flag is set: the later element alone counts
if it starts a segment. `sf.scan(..., reset=...)` does this for every operator, without a new declaration and
from any initial state; here it is by hand. Source: Blelloch, Prefix Sums and Their Applications (1990),
section 1.5.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class SegmentedAffine(sf.Operator):
    """h_t = b_t if start_t else a_t h_{t-1} + b_t"""

    start = sf.Element(identity=False, kind="bool")
    a = sf.Element(identity=1.0)
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        a, start = sf.where(later.start, later.a, later.a * self.a), self.start | later.start
        return SegmentedAffine(start=start, a=a, b=later.apply(self.b))

    def apply(self, h):
        return sf.where(self.start, self.b, self.a * h + self.b)


DECLARED = (SegmentedAffine,)


def draw(axes: Axes) -> None:
    """Sums within segments."""
    start = torch.zeros(1, 80, dtype=torch.bool)
    start[:, [0, 15, 40, 52]] = True
    one = torch.ones(1, 80)
    axes.step(range(80), sf.scan(SegmentedAffine, start=start, a=0.97 * one, b=one)[0], where="mid")
    axes.plot(start[0].nonzero(), torch.ones(4), "o", ms=4, label="starts")
    axes.legend(frameon=False)
