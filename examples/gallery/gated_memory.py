"""Stabilised gated memory

Gates that are exponentials overflow, so the memory is kept relative to the largest weight so far. The output
does not depend on that maximum, which may be any number: so no gradient need flow through it, and
`sf.stop_gradient` says so. Source: Beck et al., xLSTM (2024), section 2.2, without its mixing of memories.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf

INF = float("inf")


class GatedSum(sf.Operator):
    """top' = max(f + top, i),  (c, n)' = e^(f + top - top') (c, n) + e^(i - top') (v, w)"""

    f, i = sf.Element(identity=0.0), sf.Element(identity=-INF)
    v, w = sf.Element(identity=0.0), sf.Element(identity=0.0)
    top, c, n = sf.State(initial=-INF), sf.State(), sf.State()

    def combine(self, later):
        i, v, w = later.apply(self.i, self.v, self.w)
        return GatedSum(f=self.f + later.f, i=i, v=v, w=w)

    def apply(self, top, c, n):
        new = sf.stop_gradient(sf.maximum(self.f + top, self.i))
        at = sf.where(new > -INF, new, 0.0)
        keep, add = sf.exp(self.f + top - at), sf.exp(self.i - at)
        return new, keep * c + add * self.v, keep * n + add * self.w


class GatedMemory(sf.Recurrence):
    """y_t = c_t / max(|n_t|, e^(-top_t)),  f = log sigmoid(forget)"""

    value, forget, write = sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d")
    top, c, n = sf.State("b d"), sf.State("b d"), sf.State("b d")

    def element(self):
        return GatedSum(f=-sf.softplus(-self.forget), i=self.write, v=self.value, w=1.0)

    def readout(self):
        return self.c / sf.maximum(sf.abs(self.n), sf.exp(-sf.stop_gradient(self.top)))


DECLARED = (GatedMemory, GatedSum)


def draw(axes: Axes) -> None:
    """A value written with a weight of e^100 outlives a hundred others."""
    value = torch.randn(150, generator=torch.Generator().manual_seed(0))
    write = torch.zeros(150)
    write[30], value[30] = 100.0, 2.0
    write[110], value[110] = 100.0, -2.0
    tensors = {"value": value, "write": write, "forget": torch.full((150,), 4.0)}
    y = sf.scan(GatedMemory, **{name: x[None, :, None] for name, x in tensors.items()})
    axes.plot(value, ".", color="0.75", label="values")
    axes.plot(y[0, :, 0], label="memory")
    axes.legend(frameon=False)
