"""Selective state space layers."""

from .mamba import from_mamba, mamba_name
from .multiscale import MultiScaleSSM
from .recurrence import Euler, GroupedEuler, GroupedZeroOrderHold, ZeroOrderHold
from .selective import SelectiveSSM

__all__ = [
    "Euler",
    "GroupedEuler",
    "GroupedZeroOrderHold",
    "MultiScaleSSM",
    "SelectiveSSM",
    "ZeroOrderHold",
    "from_mamba",
    "mamba_name",
]
