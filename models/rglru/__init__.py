"""RG-LRU: the recurrence, lrnnx's layer, Griffin's recurrent block, and its converter from transformers."""

from __future__ import annotations

from .block import RecurrentBlock
from .gates import BlockDiagonalLinear
from .layer import RGLRU
from .recurrence import RGLRUScan, RGLRUUnitStart
from .recurrent_gemma import from_recurrent_gemma

__all__ = [
    "RGLRU",
    "BlockDiagonalLinear",
    "RGLRUScan",
    "RGLRUUnitStart",
    "RecurrentBlock",
    "from_recurrent_gemma",
]
