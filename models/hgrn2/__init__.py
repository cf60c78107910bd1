"""HGRN2: a forget gate with a lower bound per layer, a state of outer products, and a readout by q."""

from .attention import HGRN2Attention
from .bitlinear import BitLinear
from .layer import HGRN2
from .lower_bounds import LowerBounds, share_lower_bounds
from .recurrences import FreeKeys, TiedKeys, ValueDecay

__all__ = [
    "HGRN2",
    "BitLinear",
    "FreeKeys",
    "HGRN2Attention",
    "LowerBounds",
    "TiedKeys",
    "ValueDecay",
    "share_lower_bounds",
]
