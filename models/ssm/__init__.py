"""Selective state space layers."""

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
]
