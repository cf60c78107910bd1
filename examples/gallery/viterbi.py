"""Viterbi, in the max-plus algebra

The best score of a path that ends in each of two states: a matrix product in which + is max and · is +.
Nobody keeps back-pointers. The gradient of the best final score by the scores of the steps is 1 along the
best path and 0 elsewhere, so the backward pass that was derived *is* the trace back.
Source: Forney, The Viterbi algorithm (1973).
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf

INF = float("inf")


class Viterbi(sf.Operator):
    """x0' = max(m00 + x0, m01 + x1),  x1' = max(m10 + x0, m11 + x1)"""

    m00, m01 = sf.Element(identity=0.0), sf.Element(identity=-INF)
    m10, m11 = sf.Element(identity=-INF), sf.Element(identity=0.0)
    x0, x1 = sf.State(), sf.State()

    def combine(self, later):
        m00, m10 = later.apply(self.m00, self.m10)
        m01, m11 = later.apply(self.m01, self.m11)
        return Viterbi(m00=m00, m01=m01, m10=m10, m11=m11)

    def apply(self, x0, x1):
        return sf.maximum(self.m00 + x0, self.m01 + x1), sf.maximum(self.m10 + x0, self.m11 + x1)


DECLARED = (Viterbi,)


def best_path(scores: torch.Tensor, switch: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Best score (b,) and states (b, t) of paths with `scores` (b, t, 2), where a switch costs `switch`."""
    s = scores.detach().requires_grad_()
    to0, to1 = s.unbind(-1)
    x0, x1 = sf.scan(Viterbi, m00=to0, m01=to0 - switch, m10=to1 - switch, m11=to1)
    best = torch.maximum(x0[:, -1], x1[:, -1])
    (taken,) = torch.autograd.grad(best.sum(), s)
    return best.detach(), taken.argmax(-1)


def draw(axes: Axes) -> None:
    """A two-state chain, its noisy readings, and the path found."""
    true = (torch.arange(150) // 40) % 2
    seen = true + 0.8 * torch.randn(150, generator=torch.Generator().manual_seed(2))
    scores = -torch.stack([seen**2, (seen - 1) ** 2], -1)[None] / (2 * 0.8**2)
    _, path = best_path(scores, switch=4.0)
    axes.plot(seen, ".", color="0.75", label="readings")
    axes.step(range(150), true, color="0.3", ls=":", where="mid", label="truth")
    axes.step(range(150), path[0], where="mid", label="best path")
    axes.legend(frameon=False)
