"""Complex rotation

The diagonal of LRU and S5: each channel turns by its own angle and shrinks by its own modulus, written on
real pairs. Parameters are the logarithm of -log |a| and the angle, so that the modulus stays below 1.
Source: Orvieto et al., Resurrecting Recurrent Neural Networks for Long Sequences (2023), section 3.3.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes

import scanforge as sf


class Rotation(sf.Recurrence):
    """h_t = a h_{t-1} + sqrt(1-|a|²) u_t,  a = exp(-exp(nu) + i theta)"""

    u = sf.Input("b t d")
    nu, theta = sf.Input("d"), sf.Input("d")
    re, im = sf.State("b d"), sf.State("b d")

    def element(self):
        size = sf.exp(-sf.exp(self.nu))
        gain = sf.sqrt(1 - size * size)
        a_re, a_im = size * sf.cos(self.theta), size * sf.sin(self.theta)
        return sf.operators.ComplexAffine(a_re=a_re, a_im=a_im, b_re=gain * self.u, b_im=0.0)


DECLARED = (Rotation,)


def draw(axes: Axes) -> None:
    """The state after one impulse, in the complex plane."""
    u = torch.zeros(1, 120, 2)
    u[:, 0] = 1.0
    nu, theta = torch.tensor([0.02, 0.05]).log(), torch.tensor([0.1, 0.35])
    re, im = sf.scan(Rotation, u=u, nu=nu, theta=theta)
    for i, angle in enumerate(theta):
        axes.plot(re[0, :, i], im[0, :, i], marker=".", ms=3, label=f"theta = {angle:.2f}")
    axes.set(aspect="equal", xlabel="real part", ylabel="imaginary part")
    axes.legend(frameon=False)
