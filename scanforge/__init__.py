"""scanforge: declare a recurrence as an associative operator, and get its code and its gradients.

    class EMA(sf.Operator): ...          declare; class Layer(sf.Recurrence) with gates and a readout
    sf.scan(EMA, a=..., b=...)           run, differentiable
    sf.check(EMA); sf.explain(EMA)       trust
    sf.tune(EMA, b=8, t=2048, d=2048)    the fastest tiles for such calls on this GPU

Methods use the functions of `scanforge.maths`, here as sf.exp, sf.where, sf.maximum and so on.
"""

from __future__ import annotations

from typing import Any

from scanforge import distributed, maths, operators
from scanforge.api import prefixes, scan, step
from scanforge.declare import Operator
from scanforge.errors import (
    ArgumentError,
    BackendError,
    DeclarationError,
    DeviceError,
    DTypeError,
    GroupError,
    InputError,
    LawError,
    ScanforgeError,
    ShapeError,
    TraceError,
)
from scanforge.fields import Element, Input, Output, State
from scanforge.launch import last_run
from scanforge.laws import set_law_check
from scanforge.operators import Affine
from scanforge.recurrence import Recurrence
from scanforge.tools import check, explain, source
from scanforge.tuner import tune

__version__ = "0.1.0"
__all__ = [
    "Affine", "ArgumentError", "BackendError", "DTypeError", "DeclarationError", "DeviceError",
    "Element", "GroupError", "Input", "InputError", "LawError", "Operator", "Output", "Recurrence",
    "ScanforgeError", "ShapeError", "State", "TraceError", "check", "distributed", "explain",
    "last_run", "operators", "prefixes", "scan", "set_law_check", "source", "step",
    "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return getattr(maths, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *maths.__all__})
