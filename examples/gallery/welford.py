"""Running mean and variance

Count, mean and sum of squared deviations, merged as Chan, Golub and LeVeque do: the difference of the means,
never a difference of large sums. An element is a batch of `n` values that has been summarised already, a
plain sequence x has `n = 1, D = 0`. Source: Chan et al., Updating formulae and a pairwise algorithm
for computing sample variances (1979).
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class Welford(sf.Operator):
    """count' = count + n,  mean' = mean + d n/count',  dev' = dev + D + d² count n/count',  d = x - mean"""

    n = sf.Element(identity=0.0, domain="nonnegative")
    x = sf.Element(identity=0.0)
    D = sf.Element(identity=0.0, domain="nonnegative")
    count = sf.State(domain="nonnegative")
    mean = sf.State()
    dev = sf.State(domain="nonnegative")

    def combine(self, later):
        n, x, D = later.apply(self.n, self.x, self.D)
        return Welford(n=n, x=x, D=D)

    def apply(self, count, mean, dev):
        total = count + self.n
        share = self.n / sf.where(total > 0, total, 1.0)
        apart = self.x - mean
        return total, mean + share * apart, dev + self.D + count * share * apart * apart


DECLARED = (Welford,)


def draw(axes: Axes) -> None:
    """The mean so far, within one standard deviation so far."""
    x = 3 + torch.randn(200, generator=torch.Generator().manual_seed(4))
    one = torch.ones(1, 200)
    count, mean, dev = (y[0] for y in sf.scan(Welford, n=one, x=x[None], D=0 * one))
    width = (dev / count).sqrt()
    axes.plot(x, ".", color="0.75")
    axes.plot(mean, label="mean so far")
    axes.fill_between(range(200), mean - width, mean + width, alpha=0.2, label="one standard deviation")
    axes.legend(frameon=False)
