"""Kalman filter and Rauch–Tung–Striebel smoother, as scans

The filter's step is a fractional linear map, and those compose. The smoother runs over the filtered means and
variances from the end: `s_t = m_t + G_t (s_{t+1} - F m_t)`, which is affine, so `reverse=True` does it.
Source: Särkkä & García-Fernández, Temporal Parallelization of Bayesian Smoothers (2021).
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from torch import Tensor

import scanforge as sf


class Filter(sf.Recurrence):
    """x_t = F x_{t-1} + N(0, Q),  y_t = H x_t + N(0, R),  x_0 = N(0, 1)"""

    y = sf.Input("b t d")
    F, H = sf.Input("d"), sf.Input("d")
    Q, R = sf.Input("d", domain="positive"), sf.Input("d", domain="positive")
    mean, var = sf.State("b d"), sf.State("b d", initial=1.0)

    def element(self):
        S = self.H * self.H * self.Q + self.R
        K, FH = self.Q * self.H / S, self.F * self.H
        rest = 1 - K * self.H
        return sf.operators.Kalman(
            gain=rest * self.F, offset=K * self.y, noise=rest * self.Q, eta=FH * self.y / S, info=FH * FH / S
        )


class Smoother(sf.Recurrence):
    """s_t = m_t + G (s_{t+1} - F m_t),  v_t = p_t + G² (v_{t+1} - F² p_t - Q),  G = F p_t / (F² p_t + Q)"""

    m, p = sf.Input("b t d"), sf.Input("b t d", domain="positive")
    F, Q = sf.Input("d"), sf.Input("d", domain="positive")
    last = sf.Input("t")
    s, v = sf.State("b d"), sf.State("b d")

    def element(self):
        ahead = self.F * self.F * self.p + self.Q
        G = (1 - self.last) * self.F * self.p / ahead
        mean = sf.Affine(a=G, b=self.m - G * self.F * self.m)
        return mean, sf.Affine(a=G * G, b=self.p - G * G * ahead)


DECLARED = (Filter, Smoother)


def smooth(y: Tensor, F: Tensor, H: Tensor, Q: Tensor, R: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Filtered and smoothed (mean, variance), each (b, t, d), of readings y (b, t, d)."""
    m, p = sf.scan(Filter, y=y, F=F, H=H, Q=Q, R=R)
    last = torch.zeros(y.shape[1], dtype=y.dtype)
    last[-1] = 1.0
    return (m, p), sf.scan(Smoother, m=m, p=p, F=F, Q=Q, last=last, reverse=True)


def draw(axes: Axes) -> None:
    """A random walk, its readings, and both estimates."""
    noise = torch.randn(2, 120, generator=torch.Generator().manual_seed(3))
    walk = (0.2 * noise[0]).cumsum(0)
    y = walk + 0.7 * noise[1]
    F, H, Q, R = (torch.tensor([x]) for x in (1.0, 1.0, 0.04, 0.49))
    (m, _), (s, v) = smooth(y[None, :, None], F, H, Q, R)
    axes.plot(y, ".", color="0.8", label="readings")
    axes.plot(walk, color="0.3", lw=1, label="truth")
    axes.plot(m[0, :, 0], label="filter")
    axes.plot(s[0, :, 0], label="smoother")
    low, high = ((s + k * v.sqrt())[0, :, 0] for k in (-2, 2))
    axes.fill_between(range(120), low, high, color="C1", alpha=0.15)
    axes.legend(frameon=False, ncols=2)
