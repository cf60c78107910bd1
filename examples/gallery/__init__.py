"""Recurrences to start from, each a declaration of at most twenty lines and a plot of what it does.

A module has `DECLARED`, the classes that its page shows, and `draw(axes)`. The pages of the gallery are made
from these modules when the documentation is built; `tests/docs/test_gallery.py` checks every declaration.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

NAMES = (
    "ema", "affine", "rotation", "lru", "hysteresis", "viterbi", "log_sum_exp", "welford", "kalman",
    "oscillator", "argmax", "last_flagged", "automaton", "gated_memory", "retention", "gla", "mamba2", "rwkv",
    "segmented",
)  # fmt: skip


def entries() -> dict[str, ModuleType]:
    """Every recurrence of the gallery, by the name of its module."""
    return {name: import_module(f"examples.gallery.{name}") for name in NAMES}
