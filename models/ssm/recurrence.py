"""The selective state space recurrence, with all the gates that stand around it, in one kernel."""

from __future__ import annotations

from typing import Any

import scanforge as sf

from .. import arguments


class Euler(sf.Recurrence):
    """h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t,  y_t = (C_t·h_t + D x_t) silu(z_t), as in Mamba's code

    Δ = softplus(dt + bias), A = -exp(A_log).
    """

    x, dt, z = sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d")
    B, C = sf.Input("b t n"), sf.Input("b t n")
    A_log = sf.Input("d n")
    D, bias = sf.Input("d"), sf.Input("d")
    h = sf.State("b d n")

    def element(self) -> Any:
        dt = sf.softplus(self.dt + self.bias)
        return sf.Affine(a=sf.exp(-dt * sf.exp(self.A_log)), b=dt * self.x * self.B)

    def readout(self) -> Any:
        return (sf.sum(self.C * self.h, "n") + self.D * self.x) * sf.silu(self.z)


class ZeroOrderHold(Euler):
    """The same, with the input held for Δ: h_t = exp(Δ_t A) h_{t-1} + A⁻¹ (exp(Δ_t A) - 1) B_t x_t"""

    def element(self) -> Any:
        dt, rate = sf.softplus(self.dt + self.bias), sf.exp(self.A_log)
        lost = -sf.expm1(-dt * rate)  # 1 - exp would lose the digits of a slow decay
        return sf.Affine(a=1 - lost, b=lost / rate * self.x * self.B)


class GroupedEuler(Euler):
    """Euler with channels in groups: the d channels of group g read the same B and C"""

    x, dt, z = sf.Input("b t g d"), sf.Input("b t g d"), sf.Input("b t g d")
    B, C = sf.Input("b t g n"), sf.Input("b t g n")
    A_log = sf.Input("g d n")
    D, bias = sf.Input("g d"), sf.Input("g d")
    h = sf.State("b g d n")


class GroupedZeroOrderHold(ZeroOrderHold):
    """ZeroOrderHold with channels in groups"""

    x, dt, z = sf.Input("b t g d"), sf.Input("b t g d"), sf.Input("b t g d")
    B, C = sf.Input("b t g n"), sf.Input("b t g n")
    A_log = sf.Input("g d n")
    D, bias = sf.Input("g d"), sf.Input("g d")
    h = sf.State("b g d n")


RECURRENCES: dict[str, tuple[type[sf.Recurrence], type[sf.Recurrence]]] = {
    "euler": (Euler, GroupedEuler),
    "zoh": (ZeroOrderHold, GroupedZeroOrderHold),
}


def recurrence(where: str, discretisation: str, grouped: bool = False) -> type[sf.Recurrence]:
    """The declaration of this discretisation."""
    arguments.one_of(where, "discretisation", discretisation, RECURRENCES)
    return RECURRENCES[discretisation][grouped]
