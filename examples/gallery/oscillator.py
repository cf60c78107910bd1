"""Oscillators, 2×2

A forced harmonic oscillator for every channel, discretised implicitly, so that it is stable for any step:
LinOSS. Position and velocity are the state; the element is a 2×2 matrix and a force.
Source: Rusch & Rus, Oscillatory State-Space Models (2024), section 2.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class Affine2(sf.Operator):
    """(x, z) -> M (x, z) + (f, g)"""

    m00, m01, f = sf.Element(identity=1.0), sf.Element(identity=0.0), sf.Element(identity=0.0)
    m10, m11, g = sf.Element(identity=0.0), sf.Element(identity=1.0), sf.Element(identity=0.0)
    x, z = sf.State(), sf.State()

    def combine(self, later):
        f, g = later.apply(self.f, self.g)
        m00, m01 = later.m00 * self.m00 + later.m01 * self.m10, later.m00 * self.m01 + later.m01 * self.m11
        m10, m11 = later.m10 * self.m00 + later.m11 * self.m10, later.m10 * self.m01 + later.m11 * self.m11
        return Affine2(m00=m00, m01=m01, m10=m10, m11=m11, f=f, g=g)

    def apply(self, x, z):
        return self.m00 * x + self.m01 * z + self.f, self.m10 * x + self.m11 * z + self.g


class LinOSS(sf.Recurrence):
    """z_t = z_{t-1} + h (-A x_t + u_t),  x_t = x_{t-1} + h z_t"""

    u = sf.Input("b t d")
    A, h = sf.Input("d", domain="positive"), sf.Input("d", domain="unit")
    x, z = sf.State("b d"), sf.State("b d")

    def element(self):
        A, h = self.A, self.h
        s = 1 / (1 + h * h * A)
        return Affine2(m00=s, m01=s * h, f=s * h * h * self.u, m10=-s * h * A, m11=s, g=s * h * self.u)

    def readout(self):
        return self.x


DECLARED = (LinOSS, Affine2)


def draw(axes: Axes) -> None:
    """Three frequencies after one push."""
    u = torch.zeros(1, 300, 3)
    u[:, 0] = 1.0
    A = torch.tensor([0.3, 1.0, 4.0])
    x = sf.scan(LinOSS, u=u, A=A, h=torch.full((3,), 0.1))
    for i, value in enumerate(A):
        axes.plot(x[0, :, i] + 0.12 * i, label=f"A = {value:.1f}")
    axes.set(ylabel="position, shifted")
    axes.legend(frameon=False)
