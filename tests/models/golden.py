"""The numbers of the original systems, as tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def golden(file: str) -> dict[str, Tensor]:
    """`{"case/array": tensor}` of a file in tests/golden."""
    found = np.load(Path(__file__).parents[1] / "golden" / f"{file}.npz")
    return {key: torch.from_numpy(value) for key, value in found.items() if value.dtype.kind in "fiub"}
